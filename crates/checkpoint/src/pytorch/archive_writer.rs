//! Writer of archives of `torch.save` with one `f32` tensor.

use flate2::Crc;

use super::pickle_writer::PickleWriter;

/// Folder of all entries.
const ROOT: &str = "archive";

/// Bytes per record, without names; see `archive`.
const LOCAL_BYTES: usize = 30;
const ENTRY_BYTES: usize = 46;

/// Version that is needed to read stored entries.
const ZIP_VERSION: u16 = 10;

/// First day that the format can express, 1980-01-01.
const DATE: u16 = 0x21;

/// The bytes of `torch.save(tensor)`. Values are little-endian `f32`.
///
/// # Panics
/// At four gigabytes, which need another form.
pub(super) fn archive(shape: &[usize], values: &[u8]) -> Vec<u8> {
    let objects = describe(shape);
    let entries: [(&str, &[u8]); 4] = [
        ("data.pkl", &objects),
        ("byteorder", b"little"),
        ("data/0", values),
        // Version of the format of torch.save.
        ("version", b"3\n"),
    ];
    let mut bytes = Vec::with_capacity(values.len() + objects.len() + 1024);
    let mut directory = Vec::new();
    for (name, data) in entries {
        let name = format!("{ROOT}/{name}");
        let offset = length(bytes.len());
        let fields = fields(&name, data);
        bytes.extend(b"PK\x03\x04");
        bytes.extend(&fields);
        debug_assert_eq!(bytes.len() - offset as usize, LOCAL_BYTES, "a whole header");
        bytes.extend(name.as_bytes());
        bytes.extend(data);
        let start = directory.len();
        directory.extend(b"PK\x01\x02");
        directory.extend(ZIP_VERSION.to_le_bytes());
        directory.extend(&fields);
        // No comment, first disk, no attributes.
        directory.extend([0; 10]);
        directory.extend(offset.to_le_bytes());
        debug_assert_eq!(directory.len() - start, ENTRY_BYTES, "a whole entry");
        directory.extend(name.as_bytes());
    }
    let offset = length(bytes.len());
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06");
    bytes.extend([0; 4]);
    let count = entries.len() as u16;
    bytes.extend(count.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend(length(directory.len()).to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes.extend([0; 2]);
    bytes
}

/// Fields that an entry has in its header and in the directory.
fn fields(name: &str, data: &[u8]) -> Vec<u8> {
    let mut fields = Vec::with_capacity(LOCAL_BYTES);
    let mut checksum = Crc::new();
    checksum.update(data);
    fields.extend(ZIP_VERSION.to_le_bytes());
    // No flags, stored, midnight.
    fields.extend([0; 6]);
    fields.extend(DATE.to_le_bytes());
    fields.extend(checksum.sum().to_le_bytes());
    fields.extend(length(data.len()).to_le_bytes());
    fields.extend(length(data.len()).to_le_bytes());
    fields.extend((name.len() as u16).to_le_bytes());
    fields.extend([0; 2]);
    fields
}

/// `data.pkl` of a contiguous `f32` tensor.
fn describe(shape: &[usize]) -> Vec<u8> {
    let mut strides: Vec<usize> = shape.to_vec();
    let mut stride = 1;
    for dim in strides.iter_mut().rev() {
        stride *= std::mem::replace(dim, stride);
    }
    PickleWriter::pickle(|writer| {
        writer.call("torch._utils", "_rebuild_tensor_v2", |writer| {
            writer.persistent(|writer| {
                writer.tuple(|writer| {
                    writer.text("storage");
                    writer.global("torch", "FloatStorage");
                    writer.text("0");
                    writer.text("cpu");
                    writer.count(shape.iter().product::<usize>() as u64);
                });
            });
            writer.count(0);
            writer.counts(shape);
            writer.counts(&strides);
            writer.boolean(false);
            writer.call("collections", "OrderedDict", |_| {});
        });
    })
}

fn length(len: usize) -> u32 {
    u32::try_from(len).expect("chunks are far smaller than four gigabytes")
}
