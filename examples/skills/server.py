"""A folder of skills, and a skill from a function. Run `python examples/skills/server.py`."""

from pathlib import Path

from dovetail import Server

OFFICES = {"Oslo": "Europe/Oslo", "Lima": "America/Lima"}

app = Server("skills", instructions="Skills for meetings and releases.")
app.add_skills(Path(__file__).parent)


@app.skill(front_matter={"license": "Apache-2.0"})
def office_hours() -> str:
    """Find a time for a meeting of several offices. Use this before you propose a time."""
    rows = "\n".join(f"- {city}: 9 to 17, {zone}" for city, zone in OFFICES.items())
    return f"# Office hours\n\n{rows}\n"


if __name__ == "__main__":
    app.run()
