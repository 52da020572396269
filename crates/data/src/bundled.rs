//! Bundled corpus: the King James Version, 4 MB of public-domain English.
//!
//! It is part of the binary as gzip, so a fresh clone trains without a network or a data folder.
//! `corpus/PROVENANCE.md` documents its origin. The length and checksum in the gzip trailer are
//! verified on every read.

use std::io::Read;

/// Name of the bundled corpus in messages and reports.
pub(crate) const NAME: &str = "the bundled corpus";

const COMPRESSED: &[u8] = include_bytes!("../corpus/kjv.txt.gz");

/// The whole text, as ASCII bytes.
pub(crate) fn text() -> Vec<u8> {
    let mut text = Vec::with_capacity(length_bytes());
    flate2::bufread::GzDecoder::new(COMPRESSED)
        .read_to_end(&mut text)
        .expect("the bundled corpus was compressed by gzip and is part of this binary");
    text
}

/// Length of the text, from the gzip trailer.
pub(crate) fn length_bytes() -> usize {
    let trailer = COMPRESSED.last_chunk::<4>().expect("a gzip file is longer than its trailer");
    u32::from_le_bytes(*trailer) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_text_is_the_whole_book_as_plain_lines() {
        let bytes = text();
        assert_eq!(bytes.len(), length_bytes());
        assert!(bytes.len() >= 1 << 20, "at least 1 MB is promised");
        assert!(bytes.iter().all(|&b| b == b'\n' || (b' '..=b'~').contains(&b)));

        let text = String::from_utf8(bytes).unwrap();
        let chapters: Vec<&str> = text.split("\n\n").collect();
        let verses: usize = chapters.iter().map(|c| c.trim_end().lines().count() - 1).sum();
        assert_eq!((chapters.len(), verses), (1_189, 31_102));
        assert!(text.starts_with("Genesis 1\nIn the beginning God created the heaven"));
        assert!(text.contains("\n\nPsalms 23\nThe LORD is my shepherd; I shall not want.\n"));
        assert!(text.ends_with("The grace of our Lord Jesus Christ be with you all. Amen.\n"));
    }
}
