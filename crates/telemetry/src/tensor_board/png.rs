//! PNG images with a palette (ISO/IEC 15948): one byte a pixel, rows without filter, one zlib
//! stream.

use std::io::Write;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Image header: eight bits a pixel, palette, no interlacing.
const FORMAT: [u8; 5] = [8, 3, 0, 0, 0];

/// An image, row by row.
#[derive(Debug)]
pub(super) struct Raster {
    width: usize,
    pixels: Vec<u8>,
}

impl Raster {
    /// An image in the first colour.
    pub(super) fn new(width: usize, height: usize) -> Self {
        Self { width, pixels: vec![0; width * height] }
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn height(&self) -> usize {
        self.pixels.len() / self.width
    }

    /// Fills a rectangle; what lies outside of the image is left out.
    pub(super) fn fill(
        &mut self,
        columns: std::ops::Range<usize>,
        rows: std::ops::Range<usize>,
        colour: u8,
    ) {
        let (width, height) = (self.width, self.height());
        let columns = columns.start.min(width)..columns.end.min(width);
        for row in rows.start.min(height)..rows.end.min(height) {
            self.pixels[row * width..][columns.clone()].fill(colour);
        }
    }

    /// The file.
    pub(super) fn encode(&self, palette: &[[u8; 3]]) -> Vec<u8> {
        let mut file = SIGNATURE.to_vec();
        let size = [self.width, self.height()].map(|len| (len as u32).to_be_bytes());
        push_chunk(&mut file, *b"IHDR", &[&size.concat()[..], &FORMAT].concat());
        push_chunk(&mut file, *b"PLTE", palette.as_flattened());
        let mut compressed = ZlibEncoder::new(Vec::new(), Compression::fast());
        let rows = self.pixels.chunks_exact(self.width);
        let written = rows.map(|row| {
            compressed.write_all(&[0])?;
            compressed.write_all(row)
        });
        let written: std::io::Result<()> = written.collect();
        let data = written.and_then(|()| compressed.finish());
        push_chunk(&mut file, *b"IDAT", &data.expect("memory has room"));
        push_chunk(&mut file, *b"IEND", &[]);
        file
    }
}

/// Appends a chunk: length, name, data, checksum of name and data.
fn push_chunk(file: &mut Vec<u8>, name: [u8; 4], data: &[u8]) {
    file.extend_from_slice(&(data.len() as u32).to_be_bytes());
    let start = file.len();
    file.extend_from_slice(&name);
    file.extend_from_slice(data);
    let mut checksum = Crc::new();
    checksum.update(&file[start..]);
    file.extend_from_slice(&checksum.sum().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_file_has_its_chunks_and_the_pixels_that_were_drawn() {
        let mut image = Raster::new(5, 3);
        image.fill(1..3, 1..9, 2);
        image.fill(4..9, 0..1, 1);
        let file = image.encode(&[[255, 255, 255], [0, 0, 0], [1, 2, 3]]);
        let (signature, mut rest) = file.split_at(8);
        assert_eq!(signature, SIGNATURE);
        let mut chunks = Vec::new();
        while !rest.is_empty() {
            let len = u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
            chunks.push((&rest[4..8], &rest[8..8 + len]));
            rest = &rest[12 + len..];
        }
        let names: Vec<_> = chunks.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, [b"IHDR", b"PLTE", b"IDAT", b"IEND"]);
        assert_eq!(chunks[0].1, [0, 0, 0, 5, 0, 0, 0, 3, 8, 3, 0, 0, 0]);
        let mut pixels = Vec::new();
        flate2::read::ZlibDecoder::new(chunks[2].1).read_to_end(&mut pixels).unwrap();
        let rows = [[0, 0, 0, 0, 0, 1], [0, 0, 2, 2, 0, 0], [0, 0, 2, 2, 0, 0]];
        assert_eq!(pixels, rows.as_flattened());
        // The checksum of the last chunk is the same in every file of this format.
        assert_eq!(&file[file.len() - 4..], [0xae, 0x42, 0x60, 0x82]);
    }
}
