"""GangJob objects: reconciled with the loop, with their code and their conditions."""
