"""Keep a client open until this process is killed: `idle_client.py <file>`. Print the processes it started."""

import asyncio
import sys
from pathlib import Path

from dovetail import Client


async def main(marks: Path) -> None:
    victim = str(Path(__file__).parent / "killable_server.py")
    async with Client([sys.executable, "-I", "-S", victim, str(marks), "stateless"]) as client:
        grandchild = await client.call("grow")
        child = await asyncio.to_thread(marks.read_text)
        sys.stdout.write(f"{child.split()[1]} {grandchild}\n")
        sys.stdout.flush()
        calls = [client.call("mark", token=str(number), wait=600) for number in range(4)]
        await asyncio.gather(*calls)


asyncio.run(main(Path(sys.argv[1])))
