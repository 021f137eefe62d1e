"""The style sheet of the report, for light and dark screens and for paper, with the fonts of the reader's system."""

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --back: #fff; --text: #1c1e21; --soft: #5b6168; --rule: #d9dce0; --free: #eef0f2;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #b8578f; --c4: #b07a00; --c5: #5a6068;
  --s0: #440154; --s1: #414487; --s2: #2a788e; --s3: #22a884; --s4: #7ad151; --s5: #e3cf1d; --s6: #9aa0a6;
  --s7: #6c7178; --lost: #1c1e21 }
@media (prefers-color-scheme: dark) { :root { --back: #15171a; --text: #e6e8ea; --soft: #a3a9b0; --rule: #33383e;
  --free: #23272c; --c0: #4aa8e0; --c1: #f0803c; --c2: #2fc79b; --c3: #dd8fc0; --c4: #e6ab2e; --c5: #c4c9cf;
  --s0: #7a4a9e; --s1: #6a70c4; --s2: #3f9db5; --s3: #2fbf95; --s4: #8ddb68; --s5: #fde725; --lost: #e6e8ea } }
@media print { :root { --back: #fff; --text: #000 } section { break-inside: avoid } .wide { overflow: visible } }
body { margin: 2.2rem auto 4rem; max-width: 1000px; padding: 0 1rem; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.65rem; line-height: 1.25; margin: 0 0 .5rem; overflow-wrap: anywhere; text-wrap: balance }
h2 { font-size: 1.15rem; margin: 2.6rem 0 .2rem; padding-top: .7rem; border-top: 1px solid var(--rule) }
h3 { font-size: .95rem; margin: 1.4rem 0 .1rem }
p { margin: .2rem 0 .7rem; max-width: 46rem; overflow-wrap: anywhere } .soft, .key { color: var(--soft) }
.lead { font-size: 1.05rem }
.wide { overflow-x: auto; margin: .4rem 0 1rem } .wide > svg { min-width: 600px }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .22rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule) }
th:first-child, td:first-child, .words th, .words td { text-align: left }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--back) }
.words td { white-space: normal } .words td:last-child { min-width: 20rem; overflow-wrap: anywhere }
thead th { white-space: normal; max-width: 8rem; color: var(--soft); font-weight: 600; vertical-align: bottom }
td.best { font-weight: 700 } tr.spread td, tfoot td { color: var(--soft) } tfoot td { border-bottom: 0 }
.group { border-left: 1px solid var(--rule) }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); gap: .6rem 1.4rem }
.key { font-size: .85rem; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: .3rem 0 .5rem }
.key svg { width: 26px; height: 12px; display: inline; vertical-align: middle; margin-right: .4rem }
dl { display: grid; grid-template-columns: minmax(8rem, 14rem) 1fr; gap: .35rem 1.2rem; font-size: .9rem }
dt { font-weight: 600 } dd { margin: 0; color: var(--soft) }
@media (max-width: 560px) { dl { grid-template-columns: 1fr } dd { margin-bottom: .5rem } }
svg { width: 100%; height: auto; display: block }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); font-variant-numeric: tabular-nums }
svg .name { fill: var(--text); font-weight: 600; font-size: 12px } svg .middle { text-anchor: middle }
svg .end, svg .unit { text-anchor: end }
svg .grid { stroke: var(--rule); stroke-width: .6 } svg .axis { stroke: var(--soft) }
svg .line { fill: none; stroke-width: 1.6; stroke-linejoin: round } svg .area { stroke: var(--back); stroke-width: .3 }
svg .whole { stroke: var(--soft); stroke-dasharray: 4 3 } svg .free { fill: var(--free) }
svg .job { stroke: var(--back); stroke-width: .6 } svg .span { stroke: var(--c0); stroke-width: 2; opacity: .45 }
svg .mark { fill: var(--c0); stroke: var(--c0); stroke-width: 1.6 } svg .mark.p95 { fill: var(--back) }
svg .mark.mean { fill: var(--c1); stroke: var(--c1) }
svg .line.thick { stroke-width: 3; opacity: .55; stroke-dasharray: none } svg .dot { stroke: var(--back) }
svg .band { opacity: .15; stroke: none }
svg .lost { fill: var(--lost) } svg .spare { fill: var(--free) } svg .maintenance { fill: var(--rule) }
svg .cordoned { fill: var(--rule) } svg .hatch { fill: none; stroke: var(--soft); stroke-width: .8 }
svg .box.spare, svg .box.maintenance, svg .box.cordoned { stroke: var(--soft); stroke-dasharray: 2 2 }
svg .whisker { stroke-width: 1.8 } svg .value { font-weight: 600 } svg .effect { stroke-width: 1.6 }
svg .better { stroke: var(--c2); fill: var(--c2) } svg .worse { stroke: var(--c1); fill: var(--c1) }
svg .none { stroke: var(--soft); fill: var(--back) } svg text.none { fill: var(--soft) }
svg .ends { font-size: 9.5px } svg text.value, svg .ends { stroke: var(--back); stroke-width: 3; paint-order: stroke }
.dash1 { stroke-dasharray: 6 3 } .dash2 { stroke-dasharray: 2 2 }
.line.c0 { stroke: var(--c0) } .area.c0, .job.c0, .band.c0, .dot.c0 { fill: var(--c0) }
.line.c1 { stroke: var(--c1) } .area.c1, .job.c1, .band.c1, .dot.c1 { fill: var(--c1) }
.line.c2 { stroke: var(--c2) } .area.c2, .job.c2, .band.c2, .dot.c2 { fill: var(--c2) }
.line.c3 { stroke: var(--c3) } .area.c3, .job.c3, .band.c3, .dot.c3 { fill: var(--c3) }
.line.c4 { stroke: var(--c4) } .area.c4, .job.c4, .band.c4, .dot.c4 { fill: var(--c4) }
.line.c5 { stroke: var(--c5) } .area.c5, .job.c5, .band.c5, .dot.c5 { fill: var(--c5) }
.area.s0, .box.s0 { fill: var(--s0) } .area.s1, .box.s1 { fill: var(--s1) }
.area.s2, .box.s2 { fill: var(--s2) } .area.s3, .box.s3 { fill: var(--s3) }
.area.s4, .box.s4 { fill: var(--s4) } .area.s5, .box.s5 { fill: var(--s5) }
.area.s6, .box.s6 { fill: var(--s6) } .area.s7, .box.s7 { fill: var(--s7) }
"""
