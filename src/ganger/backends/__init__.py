"""The worlds a plan is carried out in, one package each; `wiring` picks one."""
