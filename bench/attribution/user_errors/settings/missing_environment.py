"""Takes the path of its data from a variable that the new launcher does not set."""

import os


class Settings:
    def __init__(self):
        self.steps = int(os.environ.get("STEPS", "5"))
        self.data = os.environ["TRAIN_DATA_ROOT"]


def main():
    settings = Settings()
    for step in range(settings.steps):
        print(f"step {step} from {settings.data}")


if __name__ == "__main__":
    main()
