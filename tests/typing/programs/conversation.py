"""A conversation that is kept between its turns, in a session and as JSON.

Prints::

    Hello, Ada.
    Your name is Ada.
    completed, 4 messages
    True
"""

from typing import assert_type

from rxllm import Fake, Session, serializer, session
from rxllm.values import Turn

model = Fake("Hello, Ada.", "Your name is Ada.")
turn = session.start(model, "I am Ada.").run()
print(assert_type(turn, Turn).output_text)

text = serializer.to_json(turn.session)
saved = serializer.from_json(text, Session)
turn = session.reply(model, assert_type(saved, Session), "Who am I?").run()
print(turn.output_text)
print(f"{turn.session.status}, {len(turn.session.thread)} messages")
print(serializer.from_json(serializer.to_json(turn.session), Session) == turn.session)
