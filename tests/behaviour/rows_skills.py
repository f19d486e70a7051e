"""Requirements on skills."""

from behaviour.manifest import Requirement

ROWS = (
    Requirement(
        "skills.served",
        "house",
        "A server declares and lists its skills in every version and over every transport. Each listed file can be "
        "read, and has the listed size and digest.",
    ),
    Requirement(
        "skills.not-found",
        "house",
        "A URI that is not a skill, a directory or a file of a skill has invalid parameters, in every spelling.",
        transports=("memory", "http"),
    ),
)
