//! Parquet: one text column, read page by page.
//!
//! A Parquet file consists of row groups, a row group of columns, a column of compressed pages.
//! Only the text column is read, one page at a time; values are views into the page until they
//! become documents. Null rows have no text.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use lockstep_platform::{FileError, FileReader, Files};
use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, FileReader as _, Length, SerializedFileReader};
use parquet::schema::types::SchemaDescriptor;

use super::error::DocumentError;
use super::pieces::Whole;
use crate::error::DataError;

/// Magic bytes at the start and end of a Parquet file.
const MAGIC: &[u8; 4] = b"PAR1";

/// Number of rows decoded at once.
const ROWS: usize = 64;

/// Whether a file is Parquet, by its name or its first bytes.
pub(super) fn is_parquet(path: &Path, files: &dyn Files) -> Result<bool, DataError> {
    if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet")) {
        return Ok(true);
    }
    let file = files.open(path)?;
    let mut start = [0; MAGIC.len()];
    if file.num_bytes() < start.len() as u64 {
        return Ok(false);
    }
    file.read_exact_at(0, &mut start)?;
    Ok(start == *MAGIC)
}

/// Reader of a Parquet file.
pub(crate) struct ParquetFile {
    path: PathBuf,
    column: String,
    column_index: usize,
    reader: SerializedFileReader<Chunks>,
    /// Index of the next row group.
    next_group: usize,
    current: Option<ColumnReaderImpl<ByteArrayType>>,
    /// Definition level of a row with text.
    full_level: i16,
    /// Decoded values, and for each row its definition level, if the column has any.
    values: Vec<ByteArray>,
    levels: Vec<i16>,
    next_value: usize,
    /// Rows decoded at once, and the index of the next one.
    batch_rows: usize,
    next_row: usize,
    /// Number of rows decoded or skipped so far.
    num_rows: u64,
    done_bytes: u64,
}

impl ParquetFile {
    pub(crate) fn open(path: &Path, column: &str, files: &dyn Files) -> Result<Self, DataError> {
        let reader = open(path, files)?;
        let schema = reader.metadata().file_metadata().schema_descr();
        let column_index = find(path, column, schema)?;
        let full_level = schema.column(column_index).max_def_level();
        Ok(Self {
            path: path.to_owned(),
            column: column.to_owned(),
            column_index,
            reader,
            next_group: 0,
            current: None,
            full_level,
            values: Vec::new(),
            levels: Vec::new(),
            next_value: 0,
            batch_rows: 0,
            next_row: 0,
            num_rows: 0,
            done_bytes: 0,
        })
    }

    /// Decodes the next rows; false at the end of the file.
    fn read_rows(&mut self) -> Result<bool, ParquetError> {
        while self.open_group()? {
            let column = self.current.as_mut().expect("the row group is open");
            self.values.clear();
            self.levels.clear();
            let levels = Some(&mut self.levels);
            let (num_rows, _, _) = column.read_records(ROWS, levels, None, &mut self.values)?;
            (self.next_value, self.next_row, self.batch_rows) = (0, 0, num_rows);
            self.num_rows += num_rows as u64;
            if num_rows > 0 {
                return Ok(true);
            }
            self.close_group();
        }
        Ok(false)
    }

    /// Skips up to `count` rows that are not decoded yet.
    fn skip_rows(&mut self, count: u64) -> Result<u64, ParquetError> {
        let mut skipped = 0;
        while skipped < count {
            if self.current.is_none() && self.next_group < self.reader.num_row_groups() {
                let num_rows = self.reader.metadata().row_group(self.next_group).num_rows();
                let num_rows = u64::try_from(num_rows).unwrap_or(0);
                if num_rows <= count - skipped {
                    (skipped, self.num_rows) = (skipped + num_rows, self.num_rows + num_rows);
                    self.next_group += 1;
                    self.close_group();
                    continue;
                }
            }
            if !self.open_group()? {
                break;
            }
            let column = self.current.as_mut().expect("the row group is open");
            let rest = usize::try_from(count - skipped).unwrap_or(usize::MAX);
            let num_rows = column.skip_records(rest)? as u64;
            (skipped, self.num_rows) = (skipped + num_rows, self.num_rows + num_rows);
            if num_rows == 0 {
                self.close_group();
            }
        }
        Ok(skipped)
    }

    /// Opens the next row group, unless one is open; false at the end of the file.
    fn open_group(&mut self) -> Result<bool, ParquetError> {
        if self.current.is_some() {
            return Ok(true);
        }
        if self.next_group == self.reader.num_row_groups() {
            return Ok(false);
        }
        let group = self.reader.get_row_group(self.next_group)?;
        match group.get_column_reader(self.column_index)? {
            ColumnReader::ByteArrayColumnReader(column) => self.current = Some(column),
            _ => return Err(ParquetError::General("a column changes its type".to_owned())),
        }
        self.next_group += 1;
        Ok(true)
    }

    /// Ends the row group before the next one.
    fn close_group(&mut self) {
        let group = self.reader.metadata().row_group(self.next_group - 1);
        self.done_bytes += group.compressed_size().max(0) as u64;
        self.current = None;
    }
}

impl Whole for ParquetFile {
    fn next_whole(&mut self, text: &mut String) -> Result<bool, DataError> {
        while self.next_row == self.batch_rows {
            if !self.read_rows().map_err(|error| failed(&self.path, &error))? {
                return Ok(false);
            }
        }
        let row = self.next_row;
        self.next_row += 1;
        if self.levels.get(row).is_some_and(|&level| level < self.full_level) {
            return Ok(true);
        }
        // Levels and values of a damaged file may disagree.
        let Some(value) = self.values.get(self.next_value) else { return Ok(true) };
        self.next_value += 1;
        let value = std::str::from_utf8(value.data()).map_err(|error| {
            let row = self.num_rows - (self.batch_rows - row) as u64;
            let (path, column) = (self.path.clone(), self.column.clone());
            let offset_bytes = error.valid_up_to();
            DocumentError::NotUtf8Value { path, row, column, offset_bytes }
        })?;
        text.push_str(value);
        Ok(true)
    }

    fn skip(&mut self, count: u64) -> Result<u64, DataError> {
        let decoded =
            (self.batch_rows - self.next_row).min(usize::try_from(count).unwrap_or(usize::MAX));
        let rows = self.next_row..self.next_row + decoded;
        let is_full = |row: &usize| self.levels.get(*row).is_none_or(|&l| l >= self.full_level);
        self.next_value += rows.clone().filter(is_full).count();
        self.next_row = rows.end;
        let rest = self.skip_rows(count - decoded as u64);
        Ok(decoded as u64 + rest.map_err(|error| failed(&self.path, &error))?)
    }

    fn position_bytes(&self) -> u64 {
        self.done_bytes
    }
}

/// Opens a file and reads its metadata.
pub(super) fn open(
    path: &Path,
    files: &dyn Files,
) -> Result<SerializedFileReader<Chunks>, DataError> {
    let chunks = Chunks { file: Arc::from(files.open(path)?) };
    let reader = SerializedFileReader::new(chunks).map_err(|error| failed(path, &error))?;
    // The reader takes it for granted that these are not negative.
    for column in reader.metadata().row_groups().iter().flat_map(RowGroupMetaData::columns) {
        let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
        if start < 0 || column.compressed_size() < 0 || column.num_values() < 0 {
            let reason = "a column begins or ends before the file".to_owned();
            return Err(DocumentError::Parquet { path: path.to_owned(), reason }.into());
        }
    }
    Ok(reader)
}

/// Index of the text column with this name.
fn find(path: &Path, column: &str, schema: &SchemaDescriptor) -> Result<usize, DocumentError> {
    let columns = schema.columns();
    let name = |index: usize| columns[index].path().string();
    let is_text = |index: usize| {
        columns[index].physical_type() == Type::BYTE_ARRAY && columns[index].max_rep_level() == 0
    };
    let Some(index) = (0..columns.len()).find(|&index| name(index) == column) else {
        let found = (0..columns.len()).map(name).collect();
        let column = column.to_owned();
        return Err(DocumentError::NoColumn { path: path.to_owned(), column, found });
    };
    if is_text(index) {
        return Ok(index);
    }
    let repeated = if columns[index].max_rep_level() > 0 { "lists of " } else { "" };
    Err(DocumentError::NotTextColumn {
        path: path.to_owned(),
        column: column.to_owned(),
        found: format!("{repeated}{}", columns[index].physical_type()),
        texts: (0..columns.len()).filter(|&index| is_text(index)).map(name).collect(),
    })
}

/// Converts a reader error, unless the disk failed.
pub(super) fn failed(path: &Path, error: &ParquetError) -> DataError {
    if let ParquetError::External(cause) = error
        && let Some(error) = cause.downcast_ref::<FileError>()
    {
        return error.clone().into();
    }
    let text = error.to_string();
    let message = text.trim_start_matches("Parquet error: ").trim_start_matches("EOF: ");
    let reason = message.lines().next().unwrap_or_default().to_owned();
    DocumentError::Parquet { path: path.to_owned(), reason }.into()
}

/// Adapter from platform files to the Parquet reader.
pub(super) struct Chunks {
    file: Arc<dyn FileReader>,
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.file.num_bytes()
    }
}

impl ChunkReader for Chunks {
    type T = io::BufReader<From>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(io::BufReader::new(From { file: Arc::clone(&self.file), position: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        // Check a length from a damaged file before allocating it.
        let left = self.file.num_bytes().saturating_sub(start);
        if length as u64 > left {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} are not there")));
        }
        let mut bytes = vec![0; length];
        let read = self.file.read_exact_at(start, &mut bytes);
        read.map_err(|error| ParquetError::External(Box::new(error)))?;
        Ok(bytes.into())
    }
}

/// Reads a file from an offset on.
pub(super) struct From {
    file: Arc<dyn FileReader>,
    position: u64,
}

impl Read for From {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.file.num_bytes().saturating_sub(self.position);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        self.file.read_exact_at(self.position, &mut buffer[..count])?;
        self.position += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ReadOptions;
    use super::super::tests::Folder;

    /// Files written by pyarrow with `golden/make_parquet.py`.
    const FILES: [(&str, &[u8]); 5] = [
        ("plain.parquet", include_bytes!("../../golden/plain.parquet")),
        ("snappy.parquet", include_bytes!("../../golden/snappy.parquet")),
        ("gzip.parquet", include_bytes!("../../golden/gzip.parquet")),
        ("zstd.parquet", include_bytes!("../../golden/zstd.parquet")),
        ("lz4.parquet", include_bytes!("../../golden/lz4.parquet")),
    ];
    const LATIN: &[u8] = include_bytes!("../../golden/latin.parquet");

    fn expected() -> Vec<String> {
        let rows = (0..100).filter(|i| i % 5 != 3);
        rows.map(|i| format!("document {i}: naïve 日本語 {}", "x".repeat(i % 7))).collect()
    }

    #[test]
    fn every_compression_encoding_and_page_version_of_pyarrow_is_read() {
        let folder = Folder::with(&FILES);
        for (name, _) in FILES {
            assert_eq!(folder.read(name), expected(), "{name}");
        }
        assert_eq!(folder.read("*.parquet").len(), 5 * expected().len());
        // The magic bytes suffice, whatever the name.
        let renamed = Folder::with(&[("corpus.dat", FILES[1].1)]);
        assert_eq!(renamed.read("corpus.dat"), expected());
    }

    #[test]
    fn a_column_inside_another_is_named_by_its_path() {
        let folder = Folder::with(&FILES);
        let options = ReadOptions { field: "meta.url".to_owned(), ..ReadOptions::default() };
        let urls = folder.read_with("zstd.parquet", &options).unwrap();
        assert_eq!((urls.len(), urls[99].as_str()), (100, "u99"));
    }

    #[test]
    fn a_column_that_is_not_there_or_no_text_is_refused_with_those_that_are() {
        let folder = Folder::with(&FILES);
        let refusal = |column: &str| {
            let options = ReadOptions { field: column.to_owned(), ..ReadOptions::default() };
            let error = folder.read_with("snappy.parquet", &options).unwrap_err().to_string();
            error.replace(&folder.scratch.path().display().to_string(), "DIR")
        };
        assert_eq!(
            refusal("content"),
            "DIR/snappy.parquet has no column \"content\"; it has id, text, tags.list.element, \
             meta.url"
        );
        assert_eq!(
            refusal("id"),
            "DIR/snappy.parquet: column \"id\" holds INT64, not text; columns with text: text, \
             meta.url"
        );
        assert!(refusal("tags.list.element").contains("holds lists of BYTE_ARRAY, not text"));
    }

    #[test]
    fn damaged_files_and_values_are_named() {
        let good = FILES[0].1;
        let folder = Folder::with(&[
            ("cut.parquet", &good[..good.len() - 7]),
            ("text.parquet", b"this is no Parquet at all"),
            ("tiny.parquet", b"PAR1"),
            ("latin.parquet", LATIN),
        ]);
        for name in ["cut.parquet", "text.parquet", "tiny.parquet"] {
            let line = folder.complaint(name);
            assert!(line.starts_with(&format!("DIR/{name} cannot be read as Parquet: ")), "{line}");
        }
        assert_eq!(
            folder.complaint("latin.parquet"),
            "DIR/latin.parquet row 1: column \"text\" is not UTF-8 text: byte 3 of it cannot be \
             read"
        );
        // Damage in the middle gives an error or wrong text, never a panic.
        for (name, bytes) in FILES {
            for place in (4..bytes.len()).step_by(101) {
                let mut bad = bytes.to_vec();
                bad[place] ^= 0x55;
                let folder = Folder::with(&[(name, &bad)]);
                let _ = folder.read_with(name, &ReadOptions::default());
            }
        }
    }
}
