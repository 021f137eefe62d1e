"""Wraps what goes wrong in an error of its own."""

import json


class ConfigError(Exception):
    """The configuration cannot be used."""


def optimizer(config):
    return config["optimizer"]["name"]


def load(text):
    config = json.loads(text)
    try:
        return optimizer(config)
    except KeyError as error:
        raise ConfigError("the configuration has no usable optimizer") from error


def main():
    name = load('{"steps": 10, "optimizer": {"kind": "adamw", "lr": 0.001}}')
    for step in range(10):
        print(f"step {step} with {name}")


main()
