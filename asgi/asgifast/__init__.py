"""asgifast: the ASGI half of wsgifast."""

__all__: list[str] = []
