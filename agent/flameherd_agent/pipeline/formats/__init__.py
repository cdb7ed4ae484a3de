"""Profiles as files that other tools open. The extension chooses the format."""

from flameherd_agent.pipeline.formats.write import (
    EXTENSIONS,
    LABELLED,
    check_path,
    write_profile,
)

__all__ = ["EXTENSIONS", "LABELLED", "check_path", "write_profile"]
