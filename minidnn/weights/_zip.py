"""Reads the subset of the zip format that PyTorch writes: uncompressed records, with zip64.

Unlike the standard library's ``zipfile``, it checks every number in a file against the others
before it is used: the sizes in both headers, overlaps, duplicate names, checksums.  Nothing is
extracted: a record is a span of the mapped file.
Source: PKWARE's APPNOTE.TXT 6.3.9, sections 4.3.7 to 4.3.16 and 4.5.3.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib

from ._file import MappedFile, brief

MAX_DIRECTORY = 16 << 20
MAX_RECORDS = 100_000

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR64 = struct.Struct("<4sIQI")
_ENCRYPTED, _SIZES_FOLLOW, _UTF8 = 0x1, 0x8, 0x800
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class Record:
    """One stored file: ``size`` bytes at offset ``start`` of the archive, with their CRC-32."""

    name: str
    start: int
    size: int
    crc: int


def looks_like_zip(file: MappedFile) -> bool:
    """Whether a file begins like a zip archive."""
    return file.data[:4] in (b"PK\3\4", b"PK\5\6")


class Archive:
    """The records of a zip file.

    Raises:
        WeightsError: the file is truncated, damaged, contradicts itself, or has compressed or
            encrypted records, which PyTorch does not write.
    """

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.records: dict[str, Record] = {}
        count, position, end = self._find_directory()
        directory = end
        spans = []
        begin = position
        for _ in range(count):
            record, header, position = self._read_central(position, end, begin)
            if record.name in self.records:
                raise file.error(f"has two records named {brief(record.name)}")
            self.records[record.name] = record
            spans.append((header, record.start + record.size, record.name))
        if position != directory:
            raise file.error(f"its directory has more than the {count} records that it announces")
        previous_end, previous = 0, ""
        for start, stop, name in sorted(spans):
            if start < previous_end:
                raise file.error(f"its records {brief(previous)} and {brief(name)} overlap")
            previous_end, previous = stop, name

    def record(self, name: str) -> Record:
        """Returns a record after checking its CRC-32 (0 means that PyTorch wrote none).

        Raises:
            WeightsError: there is no such record, or it is damaged.
        """
        if name not in self.records:
            known = ", ".join(list(self.records)[:8])
            raise self.file.error(f"has no record {brief(name)}; the first ones are {known}")
        record = self.records[name]
        if record.crc:
            with (
                memoryview(self.file.data) as view,
                view[record.start : record.start + record.size] as content,
            ):
                computed = zlib.crc32(content)
            if computed != record.crc:
                raise self.file.error(
                    f"record {brief(name)} is damaged: its CRC-32 is {computed:08x}, not "
                    f"{record.crc:08x}"
                )
        return record

    def read(self, name: str, limit: int) -> bytes:
        """Returns the content of a record of at most ``limit`` bytes.

        Raises:
            WeightsError: as for :meth:`record`, or the record is larger.
        """
        record = self.record(name)
        if record.size > limit:
            raise self.file.error(
                f"record {brief(name)} has {record.size} bytes; at most {limit} are valid"
            )
        return self.file.data[record.start : record.start + record.size]

    def _find_directory(self) -> tuple[int, int, int]:
        """The number of records, and the offsets where the directory begins and ends."""
        file = self.file
        lowest = max(0, file.size - _END.size - _FULL16)
        at = file.data.rfind(b"PK\5\6", lowest)
        if at < 0 or at + _END.size > file.size:
            raise file.error("is a zip archive without an end: it is truncated")
        _, disk, _, _, count, size, start, comment = _END.unpack_from(file.data, at)
        if at + _END.size + comment != file.size:
            raise file.error("is a zip archive with bytes after its end")
        end = at
        locator = at - _LOCATOR64.size
        if locator >= 0 and file.data[locator : locator + 4] == b"PK\6\7":
            _, _, end, _ = _LOCATOR64.unpack_from(file.data, locator)
            if end + _END64.size > locator or file.data[end : end + 4] != b"PK\6\6":
                raise file.error(f"its zip64 end record is not at {end}, where it should be")
            _, _, _, _, disk, _, _, count, size, start = _END64.unpack_from(file.data, end)
        if disk:
            raise file.error("is one of several parts of a zip archive")
        if count > MAX_RECORDS or size > MAX_DIRECTORY:
            raise file.error(
                f"announces {count} records and {size} bytes of directory; at most {MAX_RECORDS} "
                f"and {MAX_DIRECTORY} are valid"
            )
        if start + size != end:
            raise file.error(
                f"its directory is said to be at {start} with {size} bytes, but should end at {end}"
            )
        return count, start, end

    def _read_central(self, at: int, end: int, limit: int) -> tuple[Record, int, int]:
        """The record that the directory entry at ``at`` describes, the offset of its local header,
        and the offset of the next entry."""
        file = self.file
        if at + _CENTRAL.size > end or file.data[at : at + 4] != b"PK\1\2":
            raise file.error(f"has no directory entry at {at}: it is damaged")
        (_, _, _, flags, method, _, _, crc, packed, size, n_name, n_extra, n_comment, _, _, _,
         header) = _CENTRAL.unpack_from(file.data, at)  # fmt: skip
        name_at = at + _CENTRAL.size
        following = name_at + n_name + n_extra + n_comment
        if following > end:
            raise file.error(f"its directory entry at {at} goes beyond the directory")
        raw = file.data[name_at : name_at + n_name]
        name = raw.decode("utf-8" if flags & _UTF8 else "cp437", "replace")
        extra = file.data[name_at + n_name : name_at + n_name + n_extra]
        size, packed, header = self._widen(name, extra, size, packed, header)
        if flags & _ENCRYPTED or method or packed != size:
            raise file.error(
                f"record {brief(name)} is compressed or encrypted (method {method}, {packed} for "
                f"{size} bytes); PyTorch stores records as they are: write it with torch.save"
            )
        start = self._check_local(name, raw, header, size, limit)
        return Record(name, start, size, crc), header, following

    def _widen(
        self, name: str, extra: bytes, size: int, packed: int, header: int
    ) -> tuple[int, int, int]:
        """Replaces values that do not fit into 32 bits by those of the zip64 extra field."""
        values = [size, packed, header]
        missing = [index for index, value in enumerate(values) if value == _FULL32]
        at = 0
        while missing and at + 4 <= len(extra):
            kind, length = struct.unpack_from("<2H", extra, at)
            if kind == 1 and length >= 8 * len(missing) and at + 4 + length <= len(extra):
                wide = struct.unpack_from(f"<{len(missing)}Q", extra, at + 4)
                for index, value in zip(missing, wide, strict=True):
                    values[index] = value
                missing = []
            at += 4 + length
        if missing:
            raise self.file.error(f"record {brief(name)} lacks its zip64 sizes: it is damaged")
        return values[0], values[1], values[2]

    def _check_local(self, name: str, raw: bytes, header: int, size: int, limit: int) -> int:
        """Checks a record's local header against the directory; returns the offset of its data."""
        file = self.file
        if header + _LOCAL.size > limit or file.data[header : header + 4] != b"PK\3\4":
            raise file.error(f"record {brief(name)} is not at {header}, where it should be")
        n_name: int
        n_extra: int
        (_, _, flags, method, _, _, _, packed, unpacked, n_name, n_extra) = _LOCAL.unpack_from(
            file.data, header
        )
        name_at = header + _LOCAL.size
        start = name_at + n_name + n_extra
        if start + size > limit:
            raise file.error(
                f"record {brief(name)} has {size} bytes at {start}, but the directory begins at "
                f"{limit}: it is truncated or damaged"
            )
        sizes_agree = (
            flags & _SIZES_FOLLOW or unpacked == packed == size or unpacked == packed == _FULL32
        )
        if file.data[name_at : name_at + n_name] != raw or method or not sizes_agree:
            raise file.error(f"record {brief(name)} has another header than the directory says")
        return start
