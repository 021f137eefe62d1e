"""The rules of ganger's own checks, as data: one table a module, each row with its source and date."""

from typing import Final

from ganger.check_api.rule import Rule, RuleBook, rule_book
from ganger.check_api.rule_tables.condition_table import CONDITION_RULES
from ganger.check_api.rule_tables.gpu_table import GPU_RULES
from ganger.check_api.rule_tables.host_table import HOST_RULES
from ganger.check_api.rule_tables.nic_table import NIC_RULES
from ganger.check_api.rule_tables.sxid_table import SXID_RULES
from ganger.check_api.rule_tables.xid_table import XID_RULES

RULES: Final[tuple[Rule, ...]] = (*XID_RULES, *SXID_RULES, *GPU_RULES, *NIC_RULES, *HOST_RULES, *CONDITION_RULES)
OWN_RULES: Final[RuleBook] = rule_book(RULES)
"""The rules that are in force where a site has none of its own."""
