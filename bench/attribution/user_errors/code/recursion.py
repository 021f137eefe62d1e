"""Counts the parameters of a tree of modules, one of which contains itself."""


class Module:
    def __init__(self, parameters, *parts):
        self.parameters = parameters
        self.parts = list(parts)

    def count(self):
        return self.parameters + sum(part.count() for part in self.parts)


def main():
    head = Module(10)
    body = Module(100, head)
    body.parts.append(body)
    print(f"parameters {body.count()}")
    for step in range(5):
        print(f"step {step}")


main()
