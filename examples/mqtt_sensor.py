"""Read a sensor over MQTT, ask a model for a remark on the newest reading, and publish the remark over MQTT.

The sensor is faster than the model. While the model answers, only the newest reading is kept. To stop the remarks,
publish "off" on the topic room/remarks/switch. To start them again with the newest reading, publish "on".

    pip install rxllm[local] aiomqtt
    mosquitto -p 1883 &
    python examples/mqtt_sensor.py localhost 1883                    # with a small model on this machine
    python examples/mqtt_sensor.py localhost 1883 openai:gpt-5-mini  # or with another model
    mosquitto_sub -t room/remarks & mosquitto_pub -t room/temperature -m 31.5
"""

import asyncio
import sys
from collections.abc import AsyncIterator

import aiomqtt

import rxllm
from rxllm import operators as ops

READINGS, REMARKS, SWITCH = "room/temperature", "room/remarks", "room/remarks/switch"
PROMPT = "It is {} degrees Celsius in the room. Say in one short sentence whether that is too hot."


async def received(client: aiomqtt.Client) -> AsyncIterator[tuple[str, str]]:
    """Yield the topic and the text of every message."""
    await client.subscribe(READINGS)
    await client.subscribe(SWITCH)
    async for message in client.messages:
        if isinstance(message.payload, bytes):
            yield message.topic.value, message.payload.decode(errors="replace")


async def main(host: str, port: int, model: str = "local") -> None:
    async with aiomqtt.Client(host, port) as client:
        messages = rxllm.from_async_iter(lambda: received(client)).share()
        switch = messages.filter(lambda message: message[0] == SWITCH).map(lambda message: message[1] != "off")
        readings = messages.filter(lambda message: message[0] == READINGS).map(lambda message: message[1])
        newest = readings.pipe(ops.keep_latest(), ops.gate(switch.start_with(True)))
        async with rxllm.to_async_iter(newest) as items:
            async for reading in items:
                remark = await rxllm.generate(model, PROMPT.format(reading), temperature=0.0, max_tokens=60)
                await client.publish(REMARKS, f"{reading}: {remark.output_text.strip()}")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("python examples/mqtt_sensor.py HOST PORT [MODEL]")
    try:
        asyncio.run(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
    except KeyboardInterrupt:
        sys.exit(130)
