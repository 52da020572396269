//! Rows of a Parquet file as JSON objects: the columns of conversations and preferences, nested or
//! not ([`super::parquet_record`]).
//!
//! Rows are decoded some at a time, so memory depends on the length of a row, not on that of the
//! file. What a damaged or hostile file claims is bounded before it is believed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_platform::Files;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader as _, SerializedFileReader};

use super::error::DocumentError;
use super::parquet::{Chunks, failed, open};
use super::parquet_record::{DAMAGED, Entries, Field, Object, RecordError, json_text};
use super::pieces::Whole;
use crate::error::DataError;

/// Columns that conversations and preferences may have.
const COLUMNS: [&str; 11] = [
    "messages",
    "conversations",
    "instruction",
    "input",
    "output",
    "prompt",
    "completion",
    "chosen",
    "rejected",
    "system",
    "tools",
];

/// Columns of which one at least is there.
const MAIN_COLUMNS: usize = 9;

/// Number of rows decoded at once.
const ROWS: usize = 64;

/// Most entries of a leaf in the rows that are decoded at once. Levels are run-length encoded, so
/// that a few bytes may claim billions of them.
const MAX_ENTRIES: u64 = 1 << 25;

/// Why pages cannot be decoded.
const CONTRADICTION: &str = "its pages contradict each other";

/// Reader of the rows of a Parquet file.
pub(super) struct ParquetRows {
    path: PathBuf,
    reader: SerializedFileReader<Chunks>,
    columns: Vec<Column>,
    /// Index of the next row group.
    next_group: usize,
    is_group_open: bool,
    /// Rows that are decoded and not returned yet.
    num_decoded: usize,
    /// Number of rows returned so far.
    num_rows: u64,
    done_bytes: u64,
}

/// A column and its leaves.
struct Column {
    name: String,
    field: Field,
    /// Index of its first leaf among those of the file.
    first_leaf: usize,
    leaves: Vec<Leaf>,
    entries: Vec<Entries>,
}

/// Reader of a leaf in a row group.
struct Leaf {
    reader: ColumnReader,
    /// Entries that the pages of the current rows may still have.
    budget: Arc<AtomicU64>,
}

impl ParquetRows {
    pub(super) fn open(path: &Path, files: &dyn Files) -> Result<Self, DataError> {
        let reader = open(path, files)?;
        let descriptor = reader.metadata().file_metadata().schema_descr();
        let schema = descriptor.root_schema().get_fields();
        let roots: Vec<usize> = (0..descriptor.num_columns())
            .map(|leaf| descriptor.get_column_root_idx(leaf))
            .collect();
        let mut columns = Vec::new();
        for (index, column) in schema.iter().enumerate() {
            if !COLUMNS.contains(&column.name()) {
                continue;
            }
            let name = column.name().to_owned();
            let field = Field::of_column(column).map_err(|reason| {
                let (path, column) = (path.to_owned(), name.clone());
                DocumentError::NestedColumn { path, column, reason }
            })?;
            let first_leaf = roots.partition_point(|root| *root < index);
            let entries = (0..field.num_leaves()).map(|_| Entries::default()).collect();
            columns.push(Column { name, field, first_leaf, leaves: Vec::new(), entries });
        }
        let is_main = |column: &Column| COLUMNS[..MAIN_COLUMNS].contains(&&*column.name);
        if !columns.iter().any(is_main) {
            let found = schema.iter().map(|field| field.name().to_owned()).collect();
            return Err(DocumentError::NoConversations { path: path.to_owned(), found }.into());
        }
        Ok(Self {
            path: path.to_owned(),
            reader,
            columns,
            next_group: 0,
            is_group_open: false,
            num_decoded: 0,
            num_rows: 0,
            done_bytes: 0,
        })
    }

    /// Decodes the next rows; false at the end of the file. The decoder takes for granted what the
    /// pages of a damaged file claim of each other, and panics where that is not so.
    fn decode(&mut self) -> Result<bool, ParquetError> {
        let decoded = catch_unwind(AssertUnwindSafe(|| self.decode_rows()));
        decoded.unwrap_or_else(|_| Err(ParquetError::General(CONTRADICTION.to_owned())))
    }

    fn decode_rows(&mut self) -> Result<bool, ParquetError> {
        loop {
            if !self.is_group_open {
                if self.next_group == self.reader.num_row_groups() {
                    return Ok(false);
                }
                self.open_group()?;
            }
            let mut decoded = None;
            for column in &mut self.columns {
                for (leaf, entries) in column.leaves.iter_mut().zip(&mut column.entries) {
                    let num_rows = leaf.decode(entries)?;
                    if *decoded.get_or_insert(num_rows) != num_rows {
                        let text = format!("column {} has another number of rows", column.name);
                        return Err(ParquetError::General(text));
                    }
                }
            }
            self.num_decoded = decoded.unwrap_or(0);
            if self.num_decoded > 0 {
                return Ok(true);
            }
            let group = self.reader.metadata().row_group(self.next_group - 1);
            self.done_bytes += group.compressed_size().max(0) as u64;
            self.is_group_open = false;
        }
    }

    fn open_group(&mut self) -> Result<(), ParquetError> {
        let group = self.reader.get_row_group(self.next_group)?;
        for column in &mut self.columns {
            column.leaves.clear();
            for leaf in 0..column.field.num_leaves() {
                let index = column.first_leaf + leaf;
                let budget = Arc::new(AtomicU64::new(0));
                let pages = group.get_column_page_reader(index)?;
                let budget_of_pages = Arc::clone(&budget);
                let pages = BoundedPages { pages, budget: budget_of_pages, has_dictionary: false };
                let descriptor = group.metadata().column(index).column_descr_ptr();
                let reader = get_column_reader(descriptor, Box::new(pages));
                column.leaves.push(Leaf { reader, budget });
            }
        }
        self.next_group += 1;
        self.is_group_open = true;
        Ok(())
    }

    /// Appends the next decoded row.
    fn write_row(&mut self, text: &mut String) -> Result<(), DataError> {
        let Self { path, columns, num_rows, .. } = self;
        let mut object = Object::open(text);
        for Column { name, field, entries, .. } in columns {
            object.member(name, |out| field.write_record(entries, out)).map_err(|error| {
                let path = path.clone();
                match error {
                    RecordError::Damaged => {
                        DocumentError::Parquet { path, reason: DAMAGED.to_owned() }
                    }
                    RecordError::NotUtf8(offset_bytes) => {
                        let (column, row) = (name.clone(), *num_rows);
                        DocumentError::NotUtf8Value { path, row, column, offset_bytes }
                    }
                }
            })?;
        }
        object.close();
        Ok(())
    }
}

impl Whole for ParquetRows {
    fn next_whole(&mut self, text: &mut String) -> Result<bool, DataError> {
        if self.num_decoded == 0 && !self.decode().map_err(|error| failed(&self.path, &error))? {
            return Ok(false);
        }
        self.write_row(text)?;
        self.num_decoded -= 1;
        self.num_rows += 1;
        Ok(true)
    }

    fn skip(&mut self, count: u64) -> Result<u64, DataError> {
        let mut row = String::new();
        for skipped in 0..count {
            row.clear();
            if !self.next_whole(&mut row)? {
                return Ok(skipped);
            }
        }
        Ok(count)
    }

    fn position_bytes(&self) -> u64 {
        self.done_bytes
    }

    fn place(&self) -> String {
        format!("row {}", self.num_rows.saturating_sub(1))
    }
}

impl Leaf {
    /// Decodes the next rows and returns their number.
    fn decode(&mut self, entries: &mut Entries) -> Result<usize, ParquetError> {
        self.budget.store(MAX_ENTRIES, Ordering::Relaxed);
        entries.clear();
        match &mut self.reader {
            ColumnReader::ByteArrayColumnReader(reader) => decode(reader, entries, |value| {
                let text = std::str::from_utf8(value.data());
                text.map(json_text).map_err(|error| error.valid_up_to())
            }),
            ColumnReader::BoolColumnReader(reader) => {
                decode(reader, entries, |value| Ok(value.to_string()))
            }
            ColumnReader::Int32ColumnReader(reader) => {
                decode(reader, entries, |value| Ok(value.to_string()))
            }
            ColumnReader::Int64ColumnReader(reader) => {
                decode(reader, entries, |value| Ok(value.to_string()))
            }
            ColumnReader::FloatColumnReader(reader) => {
                decode(reader, entries, |value| Ok(serde_json::Value::from(*value).to_string()))
            }
            ColumnReader::DoubleColumnReader(reader) => {
                decode(reader, entries, |value| Ok(serde_json::Value::from(*value).to_string()))
            }
            _ => Err(ParquetError::General("a column changes its type".to_owned())),
        }
    }
}

/// Decodes the next rows of a leaf; `write` makes JSON of a value.
fn decode<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    entries: &mut Entries,
    write: impl Fn(&T::T) -> Result<String, usize>,
) -> Result<usize, ParquetError> {
    let (mut definitions, mut repetitions, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let (num_rows, _, num_levels) =
        reader.read_records(ROWS, Some(&mut definitions), Some(&mut repetitions), &mut values)?;
    // Levels that cannot vary are not stored.
    for levels in [&mut definitions, &mut repetitions] {
        if levels.is_empty() {
            levels.resize(num_levels, 0);
        }
    }
    if definitions.len() != repetitions.len() {
        return Err(ParquetError::General(DAMAGED.to_owned()));
    }
    entries.levels.extend(repetitions.into_iter().zip(definitions).map(|(r, d)| [r, d]));
    entries.values.extend(values.iter().map(write));
    Ok(num_rows)
}

/// Pages of a leaf, which together have no more entries than the budget while rows are decoded.
struct BoundedPages {
    pages: Box<dyn PageReader>,
    budget: Arc<AtomicU64>,
    has_dictionary: bool,
}

impl PageReader for BoundedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            self.has_dictionary |= matches!(page, Page::DictionaryPage { .. });
            let needs_one =
                [Encoding::RLE_DICTIONARY, Encoding::PLAIN_DICTIONARY].contains(&page.encoding());
            if needs_one && !self.has_dictionary {
                return Err(ParquetError::General(CONTRADICTION.to_owned()));
            }
        }
        let num_entries = page.as_ref().map_or(0, |page| u64::from(page.num_values()));
        let left = self.budget.load(Ordering::Relaxed).checked_sub(num_entries);
        let Some(left) = left else {
            let text = format!("some rows have more than {MAX_ENTRIES} values");
            return Err(ParquetError::General(text));
        };
        self.budget.store(left, Ordering::Relaxed);
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool, ParquetError> {
        self.pages.at_record_boundary()
    }
}

impl Iterator for BoundedPages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::ReadOptions;
    use super::super::tests::Folder;

    /// A file, and its rows as JSON Lines.
    macro_rules! golden {
        ($name:literal) => {
            (
                concat!($name, ".parquet"),
                include_bytes!(concat!("../../golden/", $name, ".parquet")),
                include_str!(concat!("../../golden/", $name, ".jsonl")),
            )
        };
    }

    /// Files written by pyarrow and by datasets with `golden/make_conversations.py`, and the same
    /// rows as JSON Lines.
    const FILES: [(&str, &[u8], &str); 7] = [
        golden!("openai"),
        golden!("sharegpt"),
        golden!("alpaca"),
        golden!("trl"),
        golden!("pairs"),
        golden!("sequence"),
        golden!("edges"),
    ];
    const REFUSED: &[u8] = include_bytes!("../../golden/refused.parquet");

    fn whole_rows() -> ReadOptions {
        ReadOptions { whole_rows: true, ..ReadOptions::default() }
    }

    fn parsed<T: AsRef<str>>(lines: impl IntoIterator<Item = T>) -> Vec<Value> {
        lines.into_iter().map(|line| serde_json::from_str(line.as_ref()).unwrap()).collect()
    }

    #[test]
    fn rows_are_those_that_pyarrow_and_datasets_have_written() {
        let files = FILES.map(|(name, bytes, _)| (name, bytes));
        let folder = Folder::with(&files);
        for (name, _, lines) in FILES {
            let rows = folder.read_with(name, &whole_rows()).unwrap();
            assert_eq!(parsed(rows), parsed(lines.lines()), "{name}");
        }
    }

    #[test]
    fn other_columns_are_refused_by_name() {
        let text = include_bytes!("../../golden/plain.parquet");
        let folder = Folder::with(&[("map.parquet", REFUSED), ("text.parquet", text)]);
        let complaint = |name: &str| {
            let error = folder.read_with(name, &whole_rows()).unwrap_err().to_string();
            error.replace(&folder.scratch.path().display().to_string(), "DIR")
        };
        let map = complaint("map.parquet");
        let expected = "DIR/map.parquet: column \"messages\" is not read as conversations: \
                        messages is a MAP; ";
        assert!(map.starts_with(expected), "{map}");
        let text = complaint("text.parquet");
        assert!(text.contains("has none of the columns messages, conversations"), "{text}");
        assert!(text.ends_with("it has id, text, tags, meta"), "{text}");
    }

    #[test]
    fn damage_gives_an_error_or_other_rows_and_never_a_panic() {
        for (name, bytes, _) in FILES {
            for place in (4..bytes.len()).step_by(149) {
                let mut bad = bytes.to_vec();
                bad[place] ^= 1 << (place % 8);
                let folder = Folder::with(&[(name, &bad)]);
                let _ = folder.read_with(name, &whole_rows());
            }
            let cut = &bytes[..bytes.len() / 2];
            assert!(Folder::with(&[(name, cut)]).read_with(name, &whole_rows()).is_err(), "{name}");
        }
    }
}
