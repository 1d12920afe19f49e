"""`termrl setup`: asks for the keys that the chosen services need, tests each, and writes .env."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from termrl.cli.arguments import UsageError, parse

if TYPE_CHECKING:
    from termrl.settings.keys import KeyedService

DOTENV = ".env"
MOST = 12


def help_text() -> str:
    from termrl.settings.keys import SERVICES

    width = max(map(len, SERVICES))
    return "\n".join(
        [
            "usage: termrl setup [SERVICE ...] [file=.env]",
            "",
            "Asks for the keys of the services you name (or asks which), tests each with one small call, and",
            "writes them into .env, readable by you alone. A key that is there already is kept with Enter;",
            "one that its service refuses is not written. Nothing is needed to run on this machine alone.",
            "",
            *(f"  {name:<{width}}  {service.what_for}" for name, service in SERVICES.items()),
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, words=["SERVICE"] * MOST, options=["file"])

    import asyncio

    from termrl.settings.dotenv import write_keys
    from termrl.settings.keys import SERVICES, try_key

    path = Path(given.options.get("file", DOTENV)).expanduser()
    names = [name for word in given.words for name in word.split(",") if name] or _ask_services(SERVICES)
    unknown = [name for name in names if name not in SERVICES]
    if unknown:
        raise UsageError(f"There is no service '{unknown[0]}'; there are {', '.join(SERVICES)}.")
    if not names:
        print("No service chosen: everything runs on this machine, and needs no key.")
        return 0
    refused = 0
    for name in names:
        service = SERVICES[name]
        values = {variable: _ask_key(service, variable) for variable in service.variables}
        address = os.environ.get(service.base_variable, "") if service.base_variable else ""
        print(f"  testing {name} ...", flush=True)
        known = {**values, service.base_variable: address} if address else values
        tested = asyncio.run(try_key(service, known))
        if tested.works is False:
            refused += 1
            print(f"  {name}: {tested.said}; not written.")
            continue
        write_keys(path, values)
        print(f"  {name}: {tested.said}; written to {path}.")
    return 1 if refused else 0


def _ask_services(services: dict[str, "KeyedService"]) -> list[str]:
    for name, service in services.items():
        print(f"  {name:<12} {service.what_for}")
    return _read_line("Which services will you use (names, separated by commas)? ").replace(",", " ").split()


def _ask_key(service: "KeyedService", variable: str) -> str:
    there = os.environ.get(variable, "")
    hint = " [Enter keeps the one that is there]" if there else ""
    typed = _read_secret(f"{variable} ({service.what_for}){hint}: ").strip()
    if not typed and not there:
        raise UsageError(f"{variable} was left empty: {service.name} does not work without it.")
    return typed or there


def _read_secret(prompt: str) -> str:
    if not sys.stdin.isatty():
        return _read_line(prompt)

    import getpass

    return getpass.getpass(prompt)


def _read_line(prompt: str) -> str:
    print(prompt, end="", flush=True)
    line = sys.stdin.readline()
    if not line:
        raise UsageError("The input ended before every key was given.")
    return line.rstrip("\n")
