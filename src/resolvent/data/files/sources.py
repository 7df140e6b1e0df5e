"""The data sets that can be downloaded: official addresses over https, checksums, and paths in the data folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from resolvent.errors import InputError

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Download:
    """A file at an official address.

    Attributes:
        sha256: SHA-256 of the file.
        path: path in the data folder; for an archive, the folder for its members.
        members: the files to extract from an archive; empty for a plain file.
        content_sha256: SHA-256 of the content of a plain file, unpacked if it is gzipped; empty: not checked. A file
            that was packed again has another ``sha256`` and the same content.
    """

    url: str
    sha256: str
    path: str
    members: tuple[str, ...] = ()
    content_sha256: str = ""

    def __post_init__(self) -> None:
        check_address(self.url)

    @property
    def paths(self) -> list[str]:
        """The paths of its files in the data folder."""
        return [f"{self.path}/{Path(m).name}" for m in self.members] or [self.path]


def check_address(url: str) -> None:
    """Raise an error unless the address is https, or this machine's own."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise InputError(f"{url} is not an https address: data are downloaded over https only")


def _idx_files(address: str, folder: str, sha256: Sequence[str],
               content_sha256: Sequence[str] = ("",) * 4) -> list[Download]:
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return [Download(address + name, of_file, f"{folder}/{name}", content_sha256=of_content)
            for name, of_file, of_content in zip(names, sha256, content_sha256, strict=True)]


_CIFAR_BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
SOURCES: dict[str, list[Download]] = {
    "mnist": _idx_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist/", "mnist",
        ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
         "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
         "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
         "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
         "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
         "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
         "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2")),
    "fashion_mnist": _idx_files(  # the authors' repository; their other address, an S3 website, has no https
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/", "fashion_mnist",
        ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
         "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
         "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
         "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5")),
    "emnist": [Download(
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e", "emnist",
        tuple(f"gzip/emnist-{split}-{part}-{kind}-ubyte.gz" for split in ("byclass", "letters")
              for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")))],
    "cifar10": [Download(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        "cifar-10-batches-bin", tuple(f"cifar-10-batches-bin/{name}.bin" for name in _CIFAR_BATCHES))],
    "shakespeare": [Download(
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed", "shakespeare/tinyshakespeare.txt",
        content_sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed")],
    "sentiment140": [Download(
        "https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
        "004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
        "sentiment", ("training.1600000.processed.noemoticon.csv", "testdata.manual.2009.06.14.csv"))],
}
