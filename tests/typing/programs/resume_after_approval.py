"""A chat that halts until somebody approves a tool call.

Prints::

    pay(amount=5)? approval
    Paid 5 euros.
"""

from typing import assert_type

import rxllm
from rxllm import ChatResult, Fake, ToolCall


@rxllm.tool(approval=True)
def pay(amount: int) -> str:
    """Pay an amount, in euros."""
    return f"paid {amount}"


model = Fake(ToolCall("c1", "pay", {"amount": 5}), "Paid 5 euros.")
halted = rxllm.chat(model, "Pay 5 euros!", tools=[pay]).run()
for call in halted.pending_tool_calls:
    print(f"{assert_type(call, ToolCall)}? {halted.halted_reason}")
approvals = {call.id: True for call in halted.pending_tool_calls}
result = rxllm.resume(model, halted, approvals=approvals, tools=[pay]).run()
print(assert_type(result, ChatResult).output_text)
