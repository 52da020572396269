//! Windows of one leaf from one source.
//!
//! A stream reads its documents in blocks, shuffles a block, tokenizes one piece at a time, and
//! cuts windows that are `context` tokens apart: the last target of a window is the first input of
//! the next one. Its position is that of the next window's first token, given by the document and
//! the block that the document belongs to. To resume, the stream reads the block again and drops
//! the documents before it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::position::StreamPosition;
use super::reader::{Document, RowPosition, RowReader, Share};
use super::source::{Content, Source};
use crate::documents::pieces::{PIECE_BYTES, cut};
use crate::error::DataError;
use crate::infilling::Span;
use crate::permutation::Permutation;

/// Size of a block of documents, which ends with the document that reaches it.
const BLOCK_BYTES: usize = 1 << 20;

/// Windows of a stream.
pub(super) struct TokenStream {
    source: Arc<Source>,
    share: Share,
    /// Position to begin at; the stream opens its files with its first window.
    position: StreamPosition,
    open: Option<OpenStream>,
}

impl TokenStream {
    /// A stream that begins at a position.
    pub(super) fn at(source: Arc<Source>, share: Share, position: StreamPosition) -> Self {
        Self { source, share, position, open: None }
    }

    /// Position of the next window.
    pub(super) fn position(&self) -> StreamPosition {
        self.position
    }

    /// Fills the next window, one token later its targets, and the first positions of its documents
    /// unless there is no room for them; false at the end of the source.
    pub(super) fn fill(
        &mut self,
        inputs: &mut [u32],
        targets: &mut [u32],
        documents: &mut [u32],
    ) -> Result<bool, DataError> {
        let open = match &mut self.open {
            Some(open) => open,
            none => none.insert(OpenStream::at(&self.source, self.share, self.position)?),
        };
        let context = inputs.len();
        if !open.require(context + 1)? {
            return Ok(false);
        }
        inputs.copy_from_slice(&open.tokens[..context]);
        targets.copy_from_slice(&open.tokens[1..=context]);
        open.fill_documents(documents);
        open.consume(context);
        let first = open.starts.front().expect("the next window has begun in a document");
        self.position = StreamPosition {
            windows: self.position.windows + 1,
            block: first.block,
            document: first.document,
            token: open.first_token - first.token,
        };
        Ok(true)
    }
}

/// Documents and tokens of a stream that has begun.
struct OpenStream {
    source: Arc<Source>,
    reader: RowReader,
    leaf: usize,
    /// Current block, its first row, and its order.
    block: Vec<Option<Document>>,
    block_start: RowPosition,
    order: Option<Permutation>,
    next_document: usize,
    /// Rest of the current document.
    text: Option<PendingText>,
    /// Tokens that no window has consumed; the first one has this number.
    tokens: Vec<u32>,
    first_token: u64,
    /// Documents of these tokens.
    starts: VecDeque<Start>,
}

/// First token of a document.
struct Start {
    token: u64,
    block: RowPosition,
    document: u64,
}

/// Text that is not tokenized yet.
struct PendingText {
    text: String,
    spans: VecDeque<Span>,
}

impl OpenStream {
    fn at(source: &Arc<Source>, share: Share, position: StreamPosition) -> Result<Self, DataError> {
        let mut stream = Self {
            source: Arc::clone(source),
            reader: RowReader::training(Arc::clone(source), share, position.block),
            leaf: share.leaf,
            block: Vec::new(),
            block_start: position.block,
            order: None,
            next_document: 0,
            text: None,
            tokens: Vec::new(),
            first_token: 0,
            starts: VecDeque::new(),
        };
        if position == (StreamPosition { windows: position.windows, ..StreamPosition::default() }) {
            return Ok(stream);
        }
        stream.read_block()?;
        stream.next_document = position.document as usize;
        let skipped = position.token as usize;
        if stream.next_document >= stream.block.len() || !stream.require(skipped + 1)? {
            return Err(DataError::OtherPosition { name: source.name().to_owned() });
        }
        stream.consume(skipped);
        Ok(stream)
    }

    /// Reads until there are `count` tokens; false at the end of the source.
    fn require(&mut self, count: usize) -> Result<bool, DataError> {
        while self.tokens.len() < count {
            if let Some(text) = &mut self.text {
                if !text.encode_next(&self.source, &mut self.tokens)? {
                    self.text = None;
                }
            } else if !self.begin_document()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sets the first position of the document of each of the next tokens.
    fn fill_documents(&self, documents: &mut [u32]) {
        for start in &self.starts {
            let first = start.token.saturating_sub(self.first_token) as usize;
            if let Some(rest) = documents.get_mut(first..) {
                rest.fill(first as u32);
            }
        }
    }

    /// Drops tokens from the front, and the documents that end before the rest.
    fn consume(&mut self, count: usize) {
        self.tokens.drain(..count);
        self.first_token += count as u64;
        while self.starts.get(1).is_some_and(|next| next.token <= self.first_token) {
            self.starts.pop_front();
        }
    }

    /// Begins the next document; false at the end of the source.
    fn begin_document(&mut self) -> Result<bool, DataError> {
        if self.next_document == self.block.len() {
            self.read_block()?;
            if self.block.is_empty() {
                return Ok(false);
            }
        }
        let index = self.next_document as u64;
        let place = self.order.map_or(index, |order| order.apply(index)) as usize;
        self.next_document += 1;
        let document = self.block[place].take().expect("a document is read once");
        self.starts.push_back(Start {
            token: self.first_token + self.tokens.len() as u64,
            block: self.block_start,
            document: index,
        });
        match document.content {
            Content::Tokens(tokens) => self.tokens.extend(tokens),
            Content::Text(text) => {
                let spans = Span::of_document(&self.source, document.number, &text);
                self.text = Some(PendingText { text, spans });
            }
        }
        Ok(true)
    }

    /// Reads the next block of documents.
    fn read_block(&mut self) -> Result<(), DataError> {
        self.block.clear();
        self.block_start = self.reader.position();
        self.next_document = 0;
        let mut num_bytes = 0;
        while self.block.len() < self.source.block_documents && num_bytes < BLOCK_BYTES {
            let Some(document) = self.reader.next_document()? else { break };
            num_bytes += document.content.num_bytes();
            self.block.push(Some(document));
        }
        let len = self.block.len();
        let order = || self.source.block_order(self.leaf, self.block_start.number, len);
        self.order = (self.source.is_shuffled() && len > 0).then(order);
        Ok(())
    }
}

impl PendingText {
    /// Appends the tokens of the next piece; false at the end of the document.
    fn encode_next(&mut self, source: &Source, tokens: &mut Vec<u32>) -> Result<bool, DataError> {
        match self.spans.pop_front() {
            None => return Ok(false),
            Some(Span::Token(token)) => tokens.push(token),
            Some(Span::Text(range)) => {
                let text = &self.text[range.clone()];
                let len =
                    if text.len() > PIECE_BYTES { cut(text, PIECE_BYTES) } else { text.len() };
                source.tokenizer.encode(&text[..len], tokens)?;
                if len < text.len() {
                    self.spans.push_front(Span::Text(range.start + len..range.end));
                }
            }
        }
        Ok(true)
    }
}

impl Span {
    /// A document with its end-of-document token.
    fn of_document(source: &Source, number: u64, text: &str) -> VecDeque<Self> {
        let mut spans = match &source.infilling {
            Some(infilling) => infilling.spans(number, text),
            None => VecDeque::from([Self::Text(0..text.len())]),
        };
        spans.extend(source.end_of_document.map(Self::Token));
        spans
    }
}
