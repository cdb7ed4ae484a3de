"""Profiles as files that other tools open. The extension chooses the format."""

from flameherd_agent.pipeline.formats.write import EXTENSIONS, check_path, write_profile

__all__ = ["EXTENSIONS", "check_path", "write_profile"]
