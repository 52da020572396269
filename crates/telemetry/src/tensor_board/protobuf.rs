//! Wire format of Protocol Buffers, as much as event files need: fields appended to a buffer.
//!
//! A nested message is written in place: one byte is left for its length, and a longer length moves
//! the message. No message needs a buffer of its own.

/// Wire types of the specification (protobuf.dev, "Encoding").
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH_DELIMITED: u32 = 2;
const FIXED32: u32 = 5;

pub(super) fn varint(buffer: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        buffer.push(number as u8 | 0x80);
        number >>= 7;
    }
    buffer.push(number as u8);
}

fn key(buffer: &mut Vec<u8>, field: u32, wire_type: u32) {
    varint(buffer, u64::from(field << 3 | wire_type));
}

/// Appends an integer or an enum.
pub(super) fn integer(buffer: &mut Vec<u8>, field: u32, number: u64) {
    key(buffer, field, VARINT);
    varint(buffer, number);
}

/// Appends a `double`.
pub(super) fn double(buffer: &mut Vec<u8>, field: u32, number: f64) {
    key(buffer, field, FIXED64);
    buffer.extend_from_slice(&number.to_le_bytes());
}

/// Appends packed `double`s.
pub(super) fn doubles(
    buffer: &mut Vec<u8>,
    field: u32,
    numbers: impl ExactSizeIterator<Item = f64>,
) {
    key(buffer, field, LENGTH_DELIMITED);
    varint(buffer, (numbers.len() * size_of::<f64>()) as u64);
    numbers.for_each(|number| buffer.extend_from_slice(&number.to_le_bytes()));
}

/// Appends a `float`.
pub(super) fn float(buffer: &mut Vec<u8>, field: u32, number: f32) {
    key(buffer, field, FIXED32);
    buffer.extend_from_slice(&number.to_le_bytes());
}

/// Appends text or bytes.
pub(super) fn bytes(buffer: &mut Vec<u8>, field: u32, content: &[u8]) {
    key(buffer, field, LENGTH_DELIMITED);
    varint(buffer, content.len() as u64);
    buffer.extend_from_slice(content);
}

/// Appends a message whose fields `write` appends.
pub(super) fn message(buffer: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    key(buffer, field, LENGTH_DELIMITED);
    let start = buffer.len();
    buffer.push(0);
    write(buffer);
    let len = buffer.len() - start - 1;
    let mut digits = [0_u8; 10];
    let (mut rest, mut num_digits) = (len as u64, 0);
    loop {
        let is_last = rest < 0x80;
        digits[num_digits] = rest as u8 & 0x7f | if is_last { 0 } else { 0x80 };
        num_digits += 1;
        rest >>= 7;
        if is_last {
            break;
        }
    }
    buffer[start] = digits[0];
    buffer.resize(buffer.len() + num_digits - 1, 0);
    buffer.copy_within(start + 1..start + 1 + len, start + num_digits);
    buffer[start + 1..start + num_digits].copy_from_slice(&digits[1..num_digits]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_specification() {
        let mut buffer = Vec::new();
        integer(&mut buffer, 1, 150);
        assert_eq!(buffer, [0x08, 0x96, 0x01]);
        buffer.clear();
        bytes(&mut buffer, 2, b"testing");
        assert_eq!(buffer, [&[0x12, 0x07][..], b"testing"].concat());
        buffer.clear();
        message(&mut buffer, 3, |inner| integer(inner, 1, 150));
        assert_eq!(buffer, [0x1a, 0x03, 0x08, 0x96, 0x01]);
    }

    #[test]
    fn a_message_of_any_length_has_its_length_in_front() {
        for len in [0, 1, 127, 128, 129, 16_383, 16_384, 70_000] {
            let content: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let (mut nested, mut plain) = (vec![7], vec![7]);
            message(&mut nested, 5, |inner| inner.extend_from_slice(&content));
            bytes(&mut plain, 5, &content);
            assert_eq!(nested, plain, "{len} bytes");
        }
    }
}
