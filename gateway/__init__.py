"""Bytes to requests and back: parses, authenticates, classifies, routes and encodes."""

from .app import create_app
from .config import Settings, load_settings

__all__ = ["Settings", "create_app", "load_settings"]
