"""The error tree as hosts import it; it lives in components, so that every layer may raise."""

from leviath.components.errors import (
    BlueprintError,
    ConfigError,
    Damaged,
    DiskFull,
    DocumentError,
    LevError,
    Locked,
    NewerFormat,
    ProviderError,
    ReplayDivergence,
    RunConflict,
    RunNotFound,
    SpawnError,
    StorageError,
    ToolError,
    WorldError,
)

__all__ = [
    "BlueprintError",
    "ConfigError",
    "Damaged",
    "DiskFull",
    "DocumentError",
    "LevError",
    "Locked",
    "NewerFormat",
    "ProviderError",
    "ReplayDivergence",
    "RunConflict",
    "RunNotFound",
    "SpawnError",
    "StorageError",
    "ToolError",
    "WorldError",
]
