"""Files of descriptions: ``describe`` has the settings."""

from typing import Any, ClassVar

from resolvent.comparisons.description.settings import DescriptionSettings
from resolvent.comparisons.plan_file import PlanFile


class DescriptionFile(PlanFile[DescriptionSettings]):
    """A description as checked settings."""

    kind: ClassVar[str] = "describe"
    title: ClassVar[str] = "description"
    example: ClassVar[str] = "{columns: [age, ward], by: arm}"
    settings_type: ClassVar[type[Any]] = DescriptionSettings
