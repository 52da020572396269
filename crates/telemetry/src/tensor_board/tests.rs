//! An event file is read back by a reader that shares no code with the writer.

use lockstep_platform::ScratchDir;

use super::*;
use crate::VERSION;

/// A field of a message: its number, and its content as bytes or as a number.
#[derive(Debug, PartialEq)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let len = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let (digits, rest) = bytes.split_at(len);
    *bytes = rest;
    digits.iter().rev().fold(0, |sum, digit| sum * 128 + u64::from(digit % 128))
}

/// Fields of a message in order.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let len = match key % 8 {
            0 => {
                found.push((key / 8, Field::Number(varint(&mut bytes))));
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)).unwrap(),
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (content, rest) = bytes.split_at(len);
        found.push((key / 8, Field::Bytes(content)));
        bytes = rest;
    }
    found
}

/// Bytes of all fields of this number.
fn bytes_of<'a>(message: &'a [u8], number: u64) -> Vec<&'a [u8]> {
    let of_field = |(found, field): (u64, Field<'a>)| match field {
        Field::Bytes(bytes) if found == number => Some(bytes),
        _ => None,
    };
    fields(message).into_iter().filter_map(of_field).collect()
}

fn number_of(message: &[u8], number: u64) -> Option<u64> {
    fields(message).into_iter().find_map(|(found, field)| match field {
        Field::Number(value) if found == number => Some(value),
        _ => None,
    })
}

/// CRC-32C by polynomial division, a bit at a time, and its mask.
fn masked_by_bits(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        for bit in 0..8 {
            let is_set = (crc ^ u32::from(*byte) >> bit) & 1 == 1;
            crc = if is_set { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    let crc = !crc;
    crc.rotate_left(17).wrapping_add(0xa282_ead8)
}

/// Records of a file, each with its checksums verified.
fn records(mut file: &[u8]) -> Vec<&[u8]> {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let mut found = Vec::new();
    while !file.is_empty() {
        let (len, rest) = file.split_at(8);
        assert_eq!(word(&rest[..4]), masked_by_bits(len), "checksum of a length");
        let len = usize::try_from(u64::from_le_bytes(len.try_into().unwrap())).unwrap();
        let (data, rest) = rest[4..].split_at(len);
        assert_eq!(word(&rest[..4]), masked_by_bits(data), "checksum of a record");
        found.push(data);
        file = &rest[4..];
    }
    found
}

/// Scalars of an event: step, tag and value.
fn scalars(event: &[u8]) -> Vec<(u64, String, f32)> {
    let step = number_of(event, 2).unwrap();
    let values = bytes_of(event, 5).into_iter().flat_map(|summary| bytes_of(summary, 1));
    let scalar = |value: &[u8]| {
        let tag = String::from_utf8(bytes_of(value, 1)[0].to_vec()).unwrap();
        let number = bytes_of(value, 2).first().map(|bytes| (*bytes).try_into().unwrap());
        Some((step, tag, f32::from_le_bytes(number?)))
    };
    values.filter_map(scalar).collect()
}

fn wall_time(event: &[u8]) -> f64 {
    f64::from_le_bytes(bytes_of(event, 1)[0].try_into().unwrap())
}

fn compressed(step: u64, delta: f64) -> Event {
    Event::Compressed { step, delta, residual_norm: 2.5, message_bytes: 1 << 40, dense_bytes: 4 }
}

fn stamped(seconds: f64, event: Event) -> Stamped {
    Stamped { v: VERSION, seconds, rank: 0, event }
}

#[test]
fn scalars_and_texts_are_read_back() {
    let world = lockstep_platform::real();
    let scratch = ScratchDir::new(&world, "tensorboard").unwrap();
    let before = world.clock().wall().as_secs_f64();
    let text = "# Recipe\n".repeat(100);
    let mut sink =
        TensorBoard::create(&world, scratch.path(), &[("recipe", text.clone())]).unwrap();
    let now = world.clock().now().as_secs_f64();
    let message = "no number".to_owned();
    sink.write(&stamped(now, compressed(7, 0.1))).unwrap();
    sink.write(&stamped(now, Event::Warning { message })).unwrap();
    sink.write(&stamped(now + 60.0, compressed(300, f64::NAN))).unwrap();
    sink.flush().unwrap();

    let name = sink.path().file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.starts_with("events.out.tfevents."), "{name}");
    let file = world.files().read(sink.path()).unwrap();
    let events = records(&file);
    assert_eq!(events.len(), 5, "version, start, text and two events with numbers");
    assert_eq!(bytes_of(events[0], 3), [b"brain.Event:2"]);
    assert_eq!(bytes_of(events[1], 7), [&[8, 1][..]], "a session starts at step 0");
    assert_eq!(number_of(events[1], 2), Some(0));

    let value = bytes_of(bytes_of(events[2], 5)[0], 1)[0];
    assert_eq!(bytes_of(value, 1), [b"recipe"]);
    let tensor = bytes_of(value, 8)[0];
    assert_eq!(number_of(tensor, 1), Some(7), "DT_STRING");
    assert_eq!(bytes_of(tensor, 8), [text.as_bytes()]);
    let plugin = bytes_of(bytes_of(value, 9)[0], 1)[0];
    assert_eq!(bytes_of(plugin, 1), [b"text"]);

    let tag = |name: &str| format!("compression/{name}");
    assert_eq!(
        scalars(events[3]),
        [
            (7, tag("delta"), 0.1),
            (7, tag("residual_norm"), 2.5),
            (7, tag("message_bytes"), 2_f32.powi(40)),
        ]
    );
    let second = scalars(events[4]);
    assert!(second[0].0 == 300 && second[0].2.is_nan());
    let [first, second] = [wall_time(events[3]), wall_time(events[4])];
    let after = world.clock().wall().as_secs_f64();
    assert!(before - 0.01 <= first && first <= after + 0.01, "{before} {first} {after}");
    assert!((second - first - 60.0).abs() < 1e-3, "{first} {second}");
}

#[test]
fn a_new_file_replaces_those_of_earlier_attempts_and_no_other() {
    let world = lockstep_platform::real();
    let scratch = ScratchDir::new(&world, "tensorboard").unwrap();
    let earlier = scratch.path().join("events.out.tfevents.0000000001.host");
    let other = scratch.path().join("notes.txt");
    for path in [&earlier, &other] {
        world.files().write_atomic(path, b"earlier").unwrap();
    }
    let sink = TensorBoard::create(&world, scratch.path(), &[]).unwrap();
    assert_eq!(world.files().list(scratch.path()).unwrap(), [sink.path().to_owned(), other]);
}
