//! Archives of `torch.save`: a ZIP file, or a range of one, whose entries are stored uncompressed.
//!
//! `data.pkl` describes the objects; the values of storage `0` are the entry `data/0`. Names begin
//! with a folder that is the file's name. Only the directory at the end and `data.pkl` are read at
//! first (ZIP application note 6.3.10, sections 4.3.12 to 4.3.16).

use std::collections::BTreeMap;
use std::ops::Range;

use lockstep_platform::FileReader;

use super::pickle::{Pickle, Value};
use crate::weights::ElementType;

/// End of the directory: signature and length without its comment.
const END: [u8; 4] = *b"PK\x05\x06";
const END_BYTES: usize = 22;

/// Longest comment after the end of the directory.
const COMMENT_BYTES_MAX: usize = u16::MAX as usize;

/// End of a directory with 64-bit fields, and the record that locates it.
const END_64: [u8; 4] = *b"PK\x06\x06";
const LOCATOR_64: [u8; 4] = *b"PK\x06\x07";
const LOCATOR_64_BYTES: usize = 20;
const END_64_BYTES: usize = 56;

/// Entry of the directory: signature and length without names.
const ENTRY: [u8; 4] = *b"PK\x01\x02";
const ENTRY_BYTES: usize = 46;

/// Header of an entry's data.
const LOCAL: [u8; 4] = *b"PK\x03\x04";
const LOCAL_BYTES: u64 = 30;

/// Largest directory and description that are read, far above those of any model.
const DIRECTORY_BYTES_MAX: u64 = 1 << 28;
const PICKLE_BYTES_MAX: u64 = 1 << 28;

/// Function that makes a tensor of a storage.
const REBUILD: (&str, &str) = ("torch._utils", "_rebuild_tensor_v2");

/// Stands for a field that has 64 bits elsewhere.
const SEE_64: u64 = u32::MAX as u64;

/// An open archive.
pub(super) struct Archive {
    /// Its range in the file.
    range: Range<u64>,
    /// Offset in the archive of the local header, and size, by the name without its folder.
    entries: BTreeMap<String, (u64, u64)>,
    /// Contents of `data.pkl`.
    pub(super) objects: Pickle,
}

/// Place of a tensor's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredTensor {
    /// Type of its elements; none for a type that is no floating-point number read here.
    pub(super) format: Option<ElementType>,
    /// Its shape, slowest dimension first.
    pub(super) shape: Vec<usize>,
    /// Name of its storage.
    storage: String,
    /// Index of its first element in the storage.
    first: usize,
}

impl Archive {
    /// Reads the directory and the objects of an archive that fills a range of a file.
    pub(super) fn open(file: &dyn FileReader, range: Range<u64>) -> Result<Self, String> {
        if range.start > range.end || range.end > file.num_bytes() {
            return Err("it is outside of its file".to_owned());
        }
        let part = Part { file, range };
        let (offset, len) = part.directory()?;
        let entries = read_entries(&part.read(offset, len, DIRECTORY_BYTES_MAX)?)?;
        let data = part.data_of(*entries.get("data.pkl").ok_or("it has no data.pkl")?)?;
        let bytes = part.read(data.start, data.end - data.start, PICKLE_BYTES_MAX)?;
        if let Some(order) = entries.get("byteorder") {
            let order = part.data_of(*order)?;
            if part.read(order.start, order.end - order.start, 16)? != b"little" {
                return Err("its numbers are not little-endian".to_owned());
            }
        }
        let objects = Pickle::parse(&bytes).map_err(|reason| format!("data.pkl: {reason}"))?;
        Ok(Self { range: part.range, entries, objects })
    }

    /// Byte range in the file of a tensor's values.
    pub(super) fn range_of(
        &self,
        file: &dyn FileReader,
        tensor: &StoredTensor,
    ) -> Result<Range<u64>, String> {
        let name = format!("data/{}", tensor.storage);
        let entry = *self.entries.get(&name).ok_or_else(|| format!("it has no {name}"))?;
        let data = Part { file, range: self.range.clone() }.data_of(entry)?;
        let format = tensor.format.ok_or("a tensor is not of floating-point numbers")?;
        let width = format.num_bytes() as u64;
        let bytes = |elements: usize| (elements as u64).checked_mul(width);
        let first = bytes(tensor.first).and_then(|skipped| data.start.checked_add(skipped));
        let len = tensor.num_elements().and_then(bytes);
        let last = first.zip(len).and_then(|(first, len)| first.checked_add(len));
        match (first, last) {
            (Some(first), Some(last)) if last <= data.end => {
                Ok(self.range.start + first..self.range.start + last)
            }
            _ => Err(format!("{name} is too short for its tensor")),
        }
    }
}

/// A range of a file that holds an archive; offsets are relative to its start.
struct Part<'a> {
    file: &'a dyn FileReader,
    range: Range<u64>,
}

impl Part<'_> {
    fn num_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn read(&self, offset: u64, len: u64, max: u64) -> Result<Vec<u8>, String> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.num_bytes());
        if !fits || len > max {
            return Err("a part of it is outside of the file".to_owned());
        }
        let mut bytes = vec![0; len as usize];
        let read = self.file.read_exact_at(self.range.start + offset, &mut bytes);
        read.map(|()| bytes).map_err(|error| error.to_string())
    }

    /// Offset and length of the directory.
    fn directory(&self) -> Result<(u64, u64), String> {
        let tail_len = self.num_bytes().min((END_BYTES + COMMENT_BYTES_MAX) as u64);
        let tail_start = self.num_bytes() - tail_len;
        let tail = self.read(tail_start, tail_len, tail_len)?;
        let end = tail.windows(4).rposition(|bytes| bytes == END);
        let end = end.filter(|end| tail.len() - end >= END_BYTES);
        let end = end.ok_or("it is not a file of torch.save, or it is cut off")?;
        let (len, offset) = (field(&tail[end..], 12, 4), field(&tail[end..], 16, 4));
        if len != SEE_64 && offset != SEE_64 {
            return Ok((offset, len));
        }
        let locator = (tail_start + end as u64).checked_sub(LOCATOR_64_BYTES as u64);
        let locator = self.read(locator.ok_or(CUT)?, LOCATOR_64_BYTES as u64, u64::MAX)?;
        let end_64 = self.read(field(&locator, 8, 8), END_64_BYTES as u64, u64::MAX)?;
        if locator[..4] != LOCATOR_64 || end_64[..4] != END_64 {
            return Err(CUT.to_owned());
        }
        Ok((field(&end_64, 48, 8), field(&end_64, 40, 8)))
    }

    /// Range of the data of an entry.
    fn data_of(&self, (header, len): (u64, u64)) -> Result<Range<u64>, String> {
        let local = self.read(header, LOCAL_BYTES, LOCAL_BYTES)?;
        if local[..4] != LOCAL {
            return Err(CUT.to_owned());
        }
        let start = header + LOCAL_BYTES + field(&local, 26, 2) + field(&local, 28, 2);
        let end = start.checked_add(len).filter(|end| *end <= self.num_bytes());
        Ok(start..end.ok_or("an entry is outside of the file")?)
    }
}

const CUT: &str = "its directory is damaged";

/// Entries of a directory, by their names without the folder.
fn read_entries(mut bytes: &[u8]) -> Result<BTreeMap<String, (u64, u64)>, String> {
    let mut entries = BTreeMap::new();
    while bytes.len() >= ENTRY_BYTES && bytes[..4] == ENTRY {
        let [name, extra, comment] = [28, 30, 32].map(|at| field(bytes, at, 2) as usize);
        let rest = bytes.get(ENTRY_BYTES + name + extra + comment..).ok_or(CUT)?;
        let full = String::from_utf8_lossy(&bytes[ENTRY_BYTES..ENTRY_BYTES + name]);
        if field(bytes, 10, 2) != 0 {
            return Err(format!(
                "{} is compressed, which torch.save does not do",
                full.escape_debug()
            ));
        }
        let extra = &bytes[ENTRY_BYTES + name..ENTRY_BYTES + name + extra];
        let mut wide = wide_fields(extra);
        let mut either = |at: usize| match field(bytes, at, 4) {
            SEE_64 => wide.next().ok_or(CUT),
            value => Ok(value),
        };
        // The fields of 64 bits come in this order, each only if it is needed.
        let (len, _packed, header) = (either(24)?, either(20)?, either(42)?);
        let name = full.split_once('/').map_or(&full[..], |(_, name)| name);
        entries.insert(name.to_owned(), (header, len));
        bytes = rest;
    }
    Ok(entries)
}

/// Fields of 64 bits in the extra data of an entry.
fn wide_fields(mut extra: &[u8]) -> std::vec::IntoIter<u64> {
    while extra.len() >= 4 {
        let (id, len) = (field(extra, 0, 2), field(extra, 2, 2) as usize);
        let Some(body) = extra.get(4..4 + len) else { break };
        if id == 1 {
            let fields = body.as_chunks::<8>().0;
            return fields
                .iter()
                .map(|field| u64::from_le_bytes(*field))
                .collect::<Vec<_>>()
                .into_iter();
        }
        extra = &extra[4 + len..];
    }
    Vec::new().into_iter()
}

/// Little-endian field of a record that was checked to have it.
fn field(bytes: &[u8], at: usize, width: usize) -> u64 {
    bytes[at..at + width].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

impl StoredTensor {
    /// The tensor that a value of `data.pkl` describes: a call of `_rebuild_tensor_v2`, perhaps
    /// inside a parameter or with attributes. None for anything else; an error for a tensor that is
    /// not contiguous.
    pub(super) fn of(value: Value<'_>) -> Option<Result<Self, String>> {
        if let Some(parts) = value.call_of("torch._utils", "_rebuild_parameter") {
            return Self::of(*parts.first()?);
        }
        let parts = match value.call_of("torch._tensor", "_rebuild_from_type_v2") {
            // A tensor with attributes: the function that makes the tensor, and its arguments.
            Some(parts) => match parts[..] {
                [function, _, arguments, ..] if function.global() == Some(REBUILD) => {
                    arguments.elements()?
                }
                _ => return None,
            },
            None => value.call_of(REBUILD.0, REBUILD.1)?,
        };
        let [storage, first, shape, strides, ..] = parts[..] else {
            return Some(Err("a tensor has too few fields".to_owned()));
        };
        Some(
            Self::at(storage, first, shape, strides)
                .ok_or_else(|| "a tensor is damaged".to_owned())
                .and_then(|(tensor, strides)| tensor.contiguous(&strides)),
        )
    }

    fn at(
        storage: Value<'_>,
        first: Value<'_>,
        shape: Value<'_>,
        strides: Value<'_>,
    ) -> Option<(Self, Vec<usize>)> {
        let storage = storage.persistent()?.elements()?;
        let [tag, class, key, ..] = storage[..] else { return None };
        if tag.text() != Some("storage") {
            return None;
        }
        let format = format_of_class(class.global()?.1);
        let (shape, storage) = (shape.counts()?, key.text()?.to_owned());
        Some((Self { format, shape, storage, first: first.count()? }, strides.counts()?))
    }

    fn contiguous(self, strides: &[usize]) -> Result<Self, String> {
        let mut expected = 1_usize;
        for (dim, stride) in self.shape.iter().zip(strides).rev() {
            if *dim > 1 && *stride != expected {
                return Err("a tensor is a view with gaps; save it with .contiguous()".to_owned());
            }
            expected = expected.saturating_mul(*dim);
        }
        Ok(self)
    }

    /// Number of elements; none on overflow.
    pub(super) fn num_elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim))
    }
}

/// Element type of a storage class.
fn format_of_class(name: &str) -> Option<ElementType> {
    match name {
        "FloatStorage" => Some(ElementType::F32),
        "BFloat16Storage" => Some(ElementType::Bf16),
        "HalfStorage" => Some(ElementType::F16),
        _ => None,
    }
}

/// Element type of a `torch.dtype`.
pub(super) fn format_of_dtype(name: &str) -> Option<ElementType> {
    ElementType::ALL.into_iter().find(|format| format.torch_name() == name)
}
