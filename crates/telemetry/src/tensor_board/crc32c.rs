//! CRC-32C (Castagnoli et al., 1993), byte by byte with a table, and the masked form of TFRecord.

/// Reversed polynomial.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            let carry = remainder & 1;
            remainder = (remainder >> 1) ^ (POLYNOMIAL * carry);
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
}

/// CRC-32C of bytes.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| (crc >> 8) ^ TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize];
    !bytes.iter().fold(!0, step)
}

/// Masked CRC-32C: rotated and offset, so that a checksum of data that contains checksums is good
/// (TensorFlow, `lib/hash/crc32c.h`).
pub(super) fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_values_are_those_of_rfc_3720() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
    }
}
