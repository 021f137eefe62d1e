"""The arguments of `ganger sim`, read and checked."""
