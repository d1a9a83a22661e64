"""Makes the events of one answer out of its tokens (pure but for the call ids, which an argument makes)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tiergate.engine import messages

from .calls import Written
from .detokenize import Detokenizer, Vocabulary
from .pieces import Piece
from .reasoning import Marker, Span, Splitter
from .stops import Stops
from .types import Called, Event, Text, Think, TokenLogprob, ToolCall


class Assembler:
    """Tokens in, events out; what the events add up to does not depend on how many tokens came at once."""

    __slots__ = (
        "_calls", "_detokenizer", "_end", "_enders", "_markers", "_new_call_id", "_splitter", "_stops", "_textual",
        "_tokens", "_unspelled", "_vocabulary", "taken", "thinking_tokens",
    )  # fmt: skip

    def __init__(
        self,
        vocabulary: Vocabulary,
        markers: Iterable[Marker],
        *,
        thinking: bool,
        stop: Sequence[str],
        enders: frozenset[int],
        new_call_id: Callable[[], str],
    ) -> None:
        """`enders` are the ids that may end the sequence: the one that does is not part of the answer."""
        markers = tuple(markers)
        self._vocabulary = vocabulary
        self._markers = {marker.id: marker for marker in markers if marker.id is not None}
        self._detokenizer = Detokenizer(vocabulary)
        self._splitter = Splitter(markers, thinking=thinking)
        self._stops = Stops(stop) if stop else None
        self._enders = enders
        self._end: tuple[int, messages.Logprob | None] | None = None
        self._textual = len(self._markers) < len(markers)
        self._unspelled = ""
        self._tokens: list[TokenLogprob] = []
        self._new_call_id = new_call_id
        self._calls = 0
        self.taken = 0
        """Tokens fed so far, those behind the one that completed a stop string left out."""
        self.thinking_tokens = 0
        """Tokens of thinking so far, markers included."""

    @property
    def stopped(self) -> str | None:
        """The stop string that has ended the answer."""
        return self._stops.matched if self._stops is not None else None

    @property
    def called(self) -> bool:
        """Whether the answer holds a tool call."""
        return self._calls > 0

    def feed(self, ids: Sequence[int], logprobs: Sequence[messages.Logprob] | None) -> list[Event]:
        """The next tokens, with their log-probabilities if those were asked for."""
        if self._stops is None or len(ids) < 2:
            if self.stopped is None:
                self.taken += len(ids)
            return self._feed(ids, logprobs)
        events: list[Event] = []
        for index in range(len(ids)):  # one by one, to know the token that completes a stop string
            if self.stopped is not None:
                break
            self.taken += 1
            events += self._feed(ids[index : index + 1], logprobs and logprobs[index : index + 1])
        return events

    def _feed(self, ids: Sequence[int], logprobs: Sequence[messages.Logprob] | None) -> list[Event]:
        out: list[Span | Written] = []
        if self._end is not None and ids:
            (id, logprob), self._end = self._end, None
            self._token(id, logprob, out)
        if ids and ids[-1] in self._enders:
            self._end = (ids[-1], logprobs[-1] if logprobs is not None else None)
            ids = ids[:-1]
        if logprobs is None and not self._textual and self._markers.keys().isdisjoint(ids):
            push = self._detokenizer.push
            text = push(ids[0]) if len(ids) == 1 else "".join([push(id) for id in ids])
            if self._splitter.thinking:
                self.thinking_tokens += len(ids)
            if text:
                out += self._splitter.feed(Piece(text))
        else:
            for index, id in enumerate(ids):
                self._token(id, logprobs[index] if logprobs is not None else None, out)
        return self._events(out)

    def finish(self, *, complete: bool, end: int | None) -> list[Event]:
        """The sequence ended: by token `end` or else by itself if `complete`, because it was cut if not."""
        out: list[Span | Written] = []
        if self._end is not None and self._end[0] != end:
            self._token(*self._end, out)
        self._end = None
        rest = self._detokenizer.flush()
        if complete:  # else the character was cut with the sequence, and no half of it is shown
            self._unspelled += rest
        self._spell(out)
        out += self._splitter.finish(complete=complete)
        events = self._events(out)
        held = [Span("text", piece) for piece in self._stops.finish()] if self._stops is not None else []
        return [*events, *self._events(held, final=True)]

    def _token(self, id: int, logprob: messages.Logprob | None, out: list[Span | Written]) -> None:
        marker = self._markers.get(id)
        if marker is None:
            self.thinking_tokens += self._splitter.thinking
            self._unspelled += self._detokenizer.push(id)
            if logprob is not None and (data := self._vocabulary.data(id)):
                self._tokens.append(self._describe(data, logprob))
            if not self._tokens or not self._detokenizer.pending:
                self._spell(out)
            return
        rest = self._detokenizer.flush()
        if not self._splitter.thinking:  # else a thought was cut inside a character
            self._unspelled += rest
        self._spell(out)
        data = marker.text.encode()
        spelled = (self._describe(data, logprob),) if logprob is not None else ()
        was_thinking = self._splitter.thinking
        out += self._splitter.mark(marker, Piece(marker.text, spelled))
        self.thinking_tokens += marker.role in ("open", "close") and (was_thinking or self._splitter.thinking)

    def _spell(self, out: list[Span | Written]) -> None:
        """Let text go whose last token ended with a character, so that its tokens spell it exactly."""
        text, self._unspelled = self._unspelled, ""
        tokens, self._tokens = self._tokens, []
        if not text:
            return
        if tokens and b"".join(token.data for token in tokens) != (data := text.encode()):
            # A leading space that decoding drops, or bytes that are no text: the answer's bytes are what counts.
            tokens = [*(replace(token, data=b"") for token in tokens[:-1]), replace(tokens[-1], data=data)]
        out += self._splitter.feed(Piece(text, tuple(tokens)))

    def _describe(self, data: bytes, logprob: messages.Logprob) -> TokenLogprob:
        rivals = []
        for id, value in logprob.top:
            spelling = self._vocabulary.spelling(id)
            rivals.append((spelling.decode("utf-8", "replace"), spelling, value))
        return TokenLogprob(data.decode("utf-8", "replace"), data, logprob.logprob, tuple(rivals))

    def _events(self, spans: Sequence[Span | Written], final: bool = False) -> list[Event]:
        """Events of spans, neighbours of one kind as one. `final`: the stop strings have had their say."""
        events: list[Event] = []
        for span in spans:
            if isinstance(span, Written):
                if self.stopped is None:
                    call = ToolCall(id=self._new_call_id(), name=span.name, arguments=span.arguments)
                    events.append(Called(self._calls, call))
                    self._calls += 1
            elif span.kind == "think":
                if self.stopped is None:
                    _append(events, Think(span.piece.text))
            elif self._stops is None or final:
                _append(events, Text(span.piece.text, span.piece.logprobs))
            else:
                for piece in self._stops.feed(span.piece):
                    if piece.text:
                        _append(events, Text(piece.text, piece.logprobs))
        return events


def _append(events: list[Event], event: Think | Text) -> None:
    last = events[-1] if events else None
    if isinstance(event, Text) and isinstance(last, Text):
        events[-1] = Text(last.text + event.text, last.logprobs + event.logprobs)
    elif isinstance(event, Think) and isinstance(last, Think):
        events[-1] = Think(last.text + event.text)
    else:
        events.append(event)
