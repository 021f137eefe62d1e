"""Types of protobuf messages from a table of their fields, in place of generated code."""

from collections.abc import Mapping

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

MessageFields = Mapping[str, Mapping[str, tuple[int, str, bool]]]
"""Fields of each message: number, message type or empty for a text, and whether it is repeated."""


def message_types(package: str, messages: MessageFields) -> Mapping[str, type[Message]]:
    """Return the types of the messages of a package, by name."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    of_field = descriptor_pb2.FieldDescriptorProto
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, is_repeated) in fields.items():
            message.field.add(
                name=field,
                number=number,
                type=of_field.TYPE_MESSAGE if kind else of_field.TYPE_STRING,
                type_name=f".{package}.{kind}" if kind else None,
                label=of_field.LABEL_REPEATED if is_repeated else of_field.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    types = {name: pool.FindMessageTypeByName(f"{package}.{name}") for name in messages}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in types.items()}
