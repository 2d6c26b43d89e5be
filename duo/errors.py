"""Exceptions that duo raises deliberately. The message is the line that a user sees: what is wrong, then what to do."""


class DuoError(Exception):
    """Base of all of duo's own errors."""

    exit_status = 1


class UsageError(DuoError):
    """Options that contradict each other or are out of range."""

    exit_status = 2

    def __init__(self, message: str, parameter: str = "") -> None:
        """`parameter`: the name that `message` begins with, if any; a command replaces it with the option's name."""
        super().__init__(message)
        self.parameter = parameter


class ModelError(DuoError):
    """A model file is missing, damaged or of the wrong kind."""


class MemoryLimitError(ModelError):
    """The KV cache and buffers do not fit the available memory."""


class PromptError(DuoError):
    """The prompt is empty, not text or longer than the context."""


class DownloadError(DuoError):
    """A model could not be downloaded."""


class LinkError(DuoError):
    """A lead and a remote draft use different protocols or incompatible models."""


class DeviceError(DuoError):
    """A device, or the RPC server that provides it, is unavailable, has failed or does not answer."""


class BusyError(DuoError):
    """Too many requests are queued, or no model is loaded."""


class DecodeError(DuoError):
    """llama.cpp rejected a batch."""


class DecodeAborted(DecodeError):
    """A decode was aborted on request."""


class GrammarError(DecodeError):
    """The grammar and the sampling options leave no token to continue with."""


class RollbackError(DecodeError):
    """The KV cache could not be rolled back."""


class ClosedError(DuoError):
    """A model or context was used after close()."""


class ApiError(DuoError):
    """A request of the HTTP API cannot be answered: the status of the response, the message, and OpenAI's `code`."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    @classmethod
    def of(cls, error: BaseException) -> "ApiError":
        """The response for an error of a request or of its text."""
        match error:
            case ApiError():
                return error
            case BusyError() | ClosedError():
                return cls(503, str(error))
            case UsageError() | PromptError():
                return cls(400, str(error))
            case RecursionError():
                return cls(400, "the request is nested too deeply")
        return cls(500, f"the generation failed: {error}")
