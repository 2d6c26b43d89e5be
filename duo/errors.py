"""Everything duo raises on purpose. The message is the one line that a user reads.

DuoError                  exit status 1
├── UsageError            exit status 2: the options cannot be meant like this
├── ModelError            a model file is missing, damaged or of the wrong kind
│   ├── VocabularyError   target and draft do not share a vocabulary
│   └── MemoryLimitError  cache and buffers do not fit the memory that is there
├── PromptError           the prompt is empty, not text or too long
├── DownloadError         a model could not be fetched
├── LinkError             a lead and a remote draft cannot work together
├── DeviceError           a device, or the machine that serves it, is not there or does not answer
├── TraceError            a file is no trace of a run
├── BusyError             too many texts wait already, or the engine is closing
├── DecodeError           llama.cpp refused a batch
│   ├── DecodeAborted     it was told to stop
│   ├── GrammarError      the grammar leaves nothing to write
│   └── RollbackError     the KV cache did not give up its last tokens
└── ClosedError           a model or context was used after close()
"""

from __future__ import annotations


class DuoError(Exception):
    """Base of all of duo's own errors."""

    exit_status = 1


class UsageError(DuoError):
    """Options that contradict each other or are out of range."""

    exit_status = 2

    def __init__(self, message: str, parameter: str = "") -> None:
        """`parameter` is the one that `message` begins with, if it does: a command says the name of its option."""
        super().__init__(message)
        self.parameter = parameter


class ModelError(DuoError):
    """A model file is missing, damaged or of the wrong kind."""


class VocabularyError(ModelError):
    """Target and draft do not share a vocabulary."""


class MemoryLimitError(ModelError):
    """The KV cache and buffers do not fit the memory that is there."""


class PromptError(DuoError):
    """The prompt is empty, not text or longer than the context."""


class DownloadError(DuoError):
    """A model could not be fetched."""


class LinkError(DuoError):
    """A lead and a remote draft do not understand each other, or do not fit."""


class DeviceError(DuoError):
    """A device, or the server of another machine's devices, is not there, has died or does not answer."""


class TraceError(DuoError):
    """A file is no trace of a run."""


class BusyError(DuoError):
    """Too many texts wait already, or there is no model yet or any more."""


class DecodeError(DuoError):
    """llama.cpp refused a batch."""


class DecodeAborted(DecodeError):
    """A decode ended early because it was told to."""


class GrammarError(DecodeError):
    """The grammar and the other options leave no token that the text could go on with."""


class RollbackError(DecodeError):
    """The KV cache could not be rolled back."""


class ClosedError(DuoError):
    """A model or context was used after it was closed."""
