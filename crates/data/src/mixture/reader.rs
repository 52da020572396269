//! Documents of one leaf, in the order of a source.

use std::sync::Arc;

use super::source::{Content, Rows, Source, Split};
use crate::error::DataError;

/// Largest number of rows that are skipped at once.
const MAX_SKIPPED: u64 = 1 << 10;

/// Position of a row in the passes over a source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RowPosition {
    /// Number of finished passes.
    pub(super) epoch: u64,
    /// Number of finished files of this pass.
    pub(super) file: u64,
    /// Index of the row in its file.
    pub(super) row: u64,
    /// Number of documents of the split before it, over all passes.
    pub(super) number: u64,
}

/// Part of the documents.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub(super) leaf: usize,
    pub(super) num_leaves: usize,
}

impl Share {
    /// All documents.
    pub(super) const WHOLE: Self = Self { leaf: 0, num_leaves: 1 };

    fn has(self, number: u64) -> bool {
        number % self.num_leaves as u64 == self.leaf as u64
    }
}

/// A document and its number in the split.
pub(super) struct Document {
    pub(super) content: Content,
    pub(super) number: u64,
}

/// Reads the documents of one share of a split, pass after pass.
pub(super) struct RowReader {
    source: Arc<Source>,
    share: Share,
    split: Split,
    /// Number of passes; none repeats.
    epochs: Option<u64>,
    position: RowPosition,
    rows: Option<Rows>,
    /// Passes begun since the last document.
    dry_epochs: u64,
}

impl RowReader {
    /// Training documents of a share, from a position on.
    pub(super) fn training(source: Arc<Source>, share: Share, position: RowPosition) -> Self {
        let epochs = source.epochs;
        Self { source, share, split: Split::Train, epochs, position, rows: None, dry_epochs: 0 }
    }

    /// One pass over the validation documents.
    pub(super) fn validation(source: Arc<Source>) -> Self {
        let (share, position) = (Share::WHOLE, RowPosition::default());
        let (split, epochs) = (Split::Validation, Some(1));
        Self { source, share, split, epochs, position, rows: None, dry_epochs: 0 }
    }

    /// Position of the next row.
    pub(super) fn position(&self) -> RowPosition {
        self.position
    }

    /// Next document with content; none after the last pass.
    pub(super) fn next_document(&mut self) -> Result<Option<Document>, DataError> {
        loop {
            if self.epochs.is_some_and(|epochs| self.position.epoch >= epochs) {
                return Ok(None);
            }
            if self.position.file == self.source.num_files() as u64 {
                self.begin_epoch()?;
                continue;
            }
            let file = self.source.file_at(self.position.epoch, self.position.file);
            // Rows of another split or another leaf are skipped without their text.
            let (foreign, numbered) = self.count_foreign(file, MAX_SKIPPED);
            let rows = match &mut self.rows {
                Some(rows) => rows,
                none => {
                    let mut rows = self.source.open_file(file)?;
                    if rows.skip(self.position.row)? < self.position.row {
                        return Err(DataError::OtherPosition {
                            name: self.source.name().to_owned(),
                        });
                    }
                    none.insert(rows)
                }
            };
            if foreign > 0 {
                let skipped = rows.skip(foreign)?;
                let numbered =
                    if skipped == foreign { numbered } else { self.count_foreign(file, skipped).1 };
                self.position.row += skipped;
                self.position.number += numbered;
                if skipped < foreign {
                    self.end_file();
                }
                continue;
            }
            let Some(content) = rows.next()? else {
                self.end_file();
                continue;
            };
            let number = self.position.number;
            (self.position.row, self.position.number) = (self.position.row + 1, number + 1);
            if !content.is_empty() {
                self.dry_epochs = 0;
                return Ok(Some(Document { content, number }));
            }
        }
    }

    /// Number of rows before the next own one, up to a limit, and of those of the split among them.
    fn count_foreign(&self, file: usize, limit: u64) -> (u64, u64) {
        let mut numbered = 0;
        for skipped in 0..limit {
            if self.source.split_of(file, self.position.row + skipped) == self.split {
                if self.share.has(self.position.number + numbered) {
                    return (skipped, numbered);
                }
                numbered += 1;
            }
        }
        (limit, numbered)
    }

    fn end_file(&mut self) {
        self.rows = None;
        (self.position.file, self.position.row) = (self.position.file + 1, 0);
    }

    /// Begins the next pass, unless as many passes as there are leaves had no document: then none
    /// has.
    fn begin_epoch(&mut self) -> Result<(), DataError> {
        self.position.epoch += 1;
        (self.position.file, self.position.row) = (0, 0);
        self.dry_epochs += 1;
        let is_last = self.epochs.is_some_and(|epochs| self.position.epoch >= epochs);
        if self.dry_epochs > self.share.num_leaves as u64 && !is_last {
            return Err(DataError::NoDocuments { name: self.source.name().to_owned() });
        }
        Ok(())
    }
}
