"""Three candidates, one leader at a time: when it is done, the next one leads at once."""

import asyncio
import tempfile

from leasehold import aio


async def candidate(name: str, url: str) -> None:
    async with aio.connect(url, owner=name) as locks:

        async def lead(term) -> str:
            print(f"{name} leads with token {term.token}")
            await asyncio.sleep(0.2)
            return "done"

        print(name, await locks.election("scheduler").run(lead))


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/election.db"
        await asyncio.gather(*(candidate(f"node-{number}", url) for number in range(3)))


asyncio.run(main())
