"""What planning raises: an impossible batch, and options that do not go together."""

from __future__ import annotations

from collections.abc import Callable


class Infeasible(RuntimeError):
    """A batch that no candidate can run; the message names the sequence and a fix."""


class OptionError(ValueError):
    """An option with a bad value, or that another rules out.

    ``template``: the message, in which ``{0}``, ``{1}`` … stand for the ``options``, named as in
    Python, and names for ``values``. ``spell`` words it for other ways to set options.
    """

    def __init__(self, template: str, *options: str, **values: object) -> None:
        super().__init__(template.format(*options, **values))
        self._message = (template, options, values)

    def spell(self, name_option: Callable[[str], str]) -> str:
        """Return the message with options as ``name_option`` writes them."""
        template, options, values = self._message
        return template.format(*map(name_option, options), **values)

    def __reduce__(self) -> tuple[Callable[..., OptionError], tuple[object, ...]]:
        return _restore, self._message


def _restore(template: str, options: tuple[str, ...], values: dict[str, object]) -> OptionError:
    return OptionError(template, *options, **values)
