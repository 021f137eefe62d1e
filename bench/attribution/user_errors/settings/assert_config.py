"""Splits attention into heads; the configuration does not divide."""

from dataclasses import dataclass


@dataclass
class Config:
    width: int = 100
    heads: int = 12
    steps: int = 5


def head_width(config):
    assert config.width % config.heads == 0, f"width {config.width} is not a multiple of {config.heads} heads"
    return config.width // config.heads


def main():
    config = Config()
    size = head_width(config)
    for step in range(config.steps):
        print(f"step {step} head width {size}")


main()
