//! Data placement: a worker reads the whole corpus, its parts of it, a corpus of its own, or
//! batches from a data server.
//!
//! In every mode a worker gets its micro-batches and the number of targets of the whole batch; an
//! evaluation gets its fixed micro-batches. *Shared* and *served* give the same batches.
//! *Partitioned* divides the corpus into one part per reduction leaf: other samples meet in a
//! batch, but still independent of the workers. *Local* corpora are visible to one worker each, so
//! batches depend on the workers.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use lockstep_config::{Order, Placement, Recipe, Source, ValidationSource};
use lockstep_platform::World;

use crate::baseline::{baseline_loss, baseline_name};
use crate::batch::{Batch, BatchShape, MicrobatchFilter};
use crate::corpus::{ConversationCounts, Corpus, Keep, TokenSpan, combined};
use crate::cursor::Cursor;
use crate::error::DataError;
use crate::loader::{Loader, TextName};
use crate::mixture::{self, Mixture};
use crate::partition::Partition;
use crate::problem;
use crate::sample_order::SampleOrder;
use crate::sampler::{first_true, samples_of_epochs};
use crate::serve::Client;
use crate::tokenizer::Tokenizer;
use crate::validation::{
    Validation, ValidationMicrobatch, microbatches_of, microbatches_of_documents,
    problem_microbatches,
};

/// Data-parallel rank of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataRank {
    /// Rank in the data-parallel group.
    pub worker: usize,
    /// Data-parallel degree.
    pub num_workers: usize,
    /// Reduction leaves of this rank, which determine its micro-batches.
    pub leaves: Vec<usize>,
}

impl DataRank {
    /// The only worker of a recipe.
    pub fn alone(recipe: &Recipe) -> Self {
        Self { worker: 0, num_workers: 1, leaves: (0..recipe.num_leaves()).collect() }
    }

    /// A worker with one leaf, for checking that its data is readable.
    pub fn probe(recipe: &Recipe, worker: usize) -> Self {
        Self { worker, num_workers: recipe.parallel.data, leaves: vec![0] }
    }
}

/// Data of a worker.
pub struct Feed {
    placement: Placement,
    shape: BatchShape,
    text: TextName,
    vocab: usize,
    is_bytes: bool,
    source: BatchSource,
}

/// Source of batches.
enum BatchSource {
    Own {
        corpus: Arc<Corpus>,
        order: SampleOrder,
        leaves: Vec<bool>,
        limit: usize,
    },
    /// Mixture, read and tokenized during training.
    Streamed {
        mixture: Box<Mixture>,
        recipe: Box<Recipe>,
        leaves: Vec<bool>,
    },
    /// Small problem: samples are generated from their numbers.
    Numbers {
        recipe: Box<Recipe>,
        classes: Vec<u8>,
    },
    Served {
        client: Option<Box<Client>>,
        leaves: Vec<bool>,
        baseline_loss: f64,
    },
}

impl Feed {
    /// Opens the recipe's data for a worker.
    pub fn open(recipe: &Recipe, world: &World, data_rank: &DataRank) -> Result<Self, DataError> {
        let placement = recipe.data.placement;
        let shape = BatchShape::largest(recipe);
        // Federated clients may run on any worker and use micro-batches of all leaves.
        let mut leaves = vec![recipe.is_federated(); recipe.num_leaves()];
        data_rank.leaves.iter().for_each(|&leaf| leaves[leaf] = true);
        if recipe.model.family.is_problem() {
            let corpus = Corpus::of_problem(recipe)?;
            return Ok(Self {
                placement,
                shape,
                text: TextName::of(&corpus),
                vocab: corpus.vocab(),
                is_bytes: true,
                source: BatchSource::Numbers {
                    recipe: Box::new(recipe.clone()),
                    classes: Vec::new(),
                },
            });
        }
        if placement == Placement::Served {
            let client = Client::join(recipe, world)?;
            let welcome = client.welcome();
            return Ok(Self {
                placement,
                shape,
                text: TextName {
                    name: welcome.name.clone(),
                    fingerprint: welcome.fingerprint.clone(),
                },
                vocab: welcome.vocab,
                is_bytes: !welcome.has_tokenizer,
                source: BatchSource::Served {
                    baseline_loss: welcome.baseline_loss,
                    client: Some(Box::new(client)),
                    leaves,
                },
            });
        }
        if recipe.data.mixture.is_on() {
            let mixture = Mixture::open(recipe, world)?;
            return Ok(Self {
                placement,
                shape,
                text: TextName { name: mixture.name(), fingerprint: mixture.fingerprint() },
                vocab: mixture.tokenizer().vocab(),
                is_bytes: mixture.tokenizer().is_bytes(),
                source: BatchSource::Streamed {
                    mixture: Box::new(mixture),
                    recipe: Box::new(recipe.clone()),
                    leaves,
                },
            });
        }
        let corpus = read_for(recipe, world, data_rank)?;
        let order = SampleOrder::of(recipe, corpus.name(), corpus.train(), &leaves)?;
        let limit = recipe.train.eval_batches * recipe.train.batch;
        Ok(Self {
            placement,
            shape,
            text: TextName::of(&corpus),
            vocab: corpus.vocab(),
            is_bytes: corpus.tokenizer().is_bytes() && data_is_text(recipe),
            source: BatchSource::Own { corpus: Arc::new(corpus), order, leaves, limit },
        })
    }

    /// Sets the classes of a small problem's samples, for partitions by class.
    pub fn classify(&mut self, of_samples: Vec<u8>) {
        if let BatchSource::Numbers { classes, .. } = &mut self.source {
            *classes = of_samples;
        }
    }

    /// Partition of the samples, if the recipe divides them.
    pub fn partition(&self) -> Option<Partition> {
        match &self.source {
            BatchSource::Own { order, .. } => order.partition().cloned(),
            BatchSource::Numbers { recipe, classes } => {
                recipe.is_partitioned().then(|| Partition::new(recipe, classes.clone()))
            }
            BatchSource::Streamed { .. } | BatchSource::Served { .. } => None,
        }
    }

    /// Number of steps of this many passes over the training data; none where the length of the
    /// data is unknown.
    pub fn steps_of_epochs(&self, epochs: f64) -> Option<u64> {
        match &self.source {
            BatchSource::Own { order, .. } => Some(order.steps_of_epochs(epochs)),
            BatchSource::Numbers { recipe, .. } => {
                let needed = samples_of_epochs(epochs, recipe.model.problem.samples as u64);
                let plan = recipe.batch_plan();
                Some(first_true(|step| plan.first_sample_of(step) >= needed))
            }
            BatchSource::Streamed { .. } | BatchSource::Served { .. } => None,
        }
    }

    /// Whether the samples depend on the workers, so that layouts differ in bits.
    pub fn depends_on_workers(&self) -> bool {
        self.placement == Placement::Local
    }

    /// Name of the corpus, for messages.
    pub fn name(&self) -> &str {
        &self.text.name
    }

    /// [Fingerprint](Corpus::fingerprint) of the corpus.
    pub fn fingerprint(&self) -> &str {
        &self.text.fingerprint
    }

    /// Combines the fingerprints of all workers, if each has its own corpus.
    pub fn all_fingerprints(&mut self, by_worker: impl IntoIterator<Item = u64>) {
        let texts = by_worker.into_iter().map(|number| format!("{number:016x}"));
        self.text.fingerprint = combined(texts);
    }

    /// Numbers of the conversations; none where the data are others, and for data of a server.
    pub fn conversations(&self) -> Option<ConversationCounts> {
        match &self.source {
            BatchSource::Own { corpus, .. } => corpus.conversations(),
            _ => None,
        }
    }

    /// Vocabulary size of the corpus.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Memory of the tokens in this process, without mapped files.
    pub fn held_bytes(&self) -> usize {
        match &self.source {
            BatchSource::Own { corpus, .. } => corpus.held_bytes(),
            BatchSource::Streamed { mixture, leaves, .. } => {
                mixture.held_bytes(leaves.iter().filter(|own| **own).count())
            }
            BatchSource::Numbers { .. } | BatchSource::Served { .. } => 0,
        }
    }

    /// Baseline entropy; [`crate::baseline`] defines it.
    pub fn baseline_loss(&self) -> f64 {
        match &self.source {
            BatchSource::Own { corpus, .. } => baseline_loss(corpus),
            BatchSource::Streamed { mixture, .. } => mixture.entropy(),
            // Small problems have their own baseline.
            BatchSource::Numbers { .. } => f64::NAN,
            BatchSource::Served { baseline_loss, .. } => *baseline_loss,
        }
    }

    /// Name of the baseline statistic.
    pub fn baseline_name(&self) -> &'static str {
        baseline_name(self.vocab, self.is_bytes)
    }

    /// Content of `tokenizer.json`; none for byte tokens.
    ///
    /// # Panics
    /// After [`Self::loader`], if the data is served.
    pub fn tokenizer_json(&mut self) -> Result<Option<Vec<u8>>, DataError> {
        match &mut self.source {
            BatchSource::Own { corpus, .. } => Ok(corpus.tokenizer().json().map(<[u8]>::to_vec)),
            BatchSource::Streamed { mixture, .. } => {
                Ok(mixture.tokenizer().json().map(<[u8]>::to_vec))
            }
            BatchSource::Numbers { .. } => Ok(None),
            BatchSource::Served { client, .. } => ready(client).tokenizer_json(),
        }
    }

    /// Tokenizer of the corpus; none for numbers, and for data of a server.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        match &self.source {
            BatchSource::Own { corpus, .. } => Some(corpus.tokenizer()),
            BatchSource::Streamed { mixture, .. } => Some(mixture.tokenizer()),
            BatchSource::Numbers { .. } | BatchSource::Served { .. } => None,
        }
    }

    /// Micro-batches of evaluations; with local corpora this worker's share of them, which
    /// [`interleave_validation`] merges.
    ///
    /// # Panics
    /// After [`Self::loader`], if the data is served.
    pub fn validation(&mut self, num_workers: usize) -> Result<Validation, DataError> {
        let is_local = self.placement == Placement::Local;
        match &mut self.source {
            BatchSource::Served { client, .. } => ready(client).validation(),
            BatchSource::Numbers { recipe, .. } => Ok(problem_microbatches(recipe)),
            BatchSource::Streamed { mixture, recipe, .. } => {
                let limit = recipe.train.eval_batches * recipe.train.batch;
                microbatches_of(self.shape, limit, mixture.validation(), recipe.data.documents)
            }
            BatchSource::Own { corpus, limit, .. } => {
                let limit = if is_local { limit.div_ceil(num_workers) } else { *limit };
                microbatches_of(self.shape, limit, corpus.validation(), corpus.cut())
            }
        }
    }

    /// Numbers of training and of validation documents whose losses under the reference model a
    /// run on preferences needs; none where it is of another kind.
    pub fn num_references(&self) -> Option<[usize; 2]> {
        let BatchSource::Own { corpus, .. } = &self.source else { return None };
        let (context, cut) = (self.shape.context, corpus.cut());
        let num = |span: &TokenSpan| span.num_windows(context, cut, Order::Sequential) as usize;
        let spans = [corpus.train(), corpus.validation()];
        corpus.train().has_pairs().then(|| spans.map(num))
    }

    /// Micro-batches of the documents of a run on preferences, those of training first.
    pub fn reference_microbatches(
        &self,
        numbers: Range<usize>,
    ) -> Result<Vec<ValidationMicrobatch>, DataError> {
        let BatchSource::Own { corpus, .. } = &self.source else {
            panic!("the corpus of a run on preferences is here")
        };
        microbatches_of_documents(self.shape, [corpus.train(), corpus.validation()], numbers)
    }

    /// Sets the losses of all documents under the reference model, those of training first.
    ///
    /// # Panics
    /// After [`Self::loader`].
    pub fn set_references(&mut self, losses: &[f64]) {
        let [num_train, _] = self.num_references().expect("a run on preferences");
        let (train, validation) = losses.split_at(num_train);
        if let BatchSource::Own { corpus, .. } = &mut self.source {
            let corpus = Arc::get_mut(corpus).expect("no loader has it");
            corpus.set_references([train.into(), validation.into()]);
        }
    }

    /// Starts the loader of this worker's batches at `cursor`.
    ///
    /// # Panics
    /// If called twice and the data is served.
    pub fn loader(&mut self, world: &World, cursor: Cursor) -> Result<Loader, DataError> {
        let text = self.text.clone();
        match &mut self.source {
            BatchSource::Numbers { recipe, classes } => {
                let fill = Box::new(problem::fill(recipe, classes.clone()));
                Loader::from_memory(self.shape, world, text, cursor, fill)
            }
            BatchSource::Own { corpus, order, leaves, .. } => {
                let (corpus, order, leaves) = (Arc::clone(corpus), order.clone(), leaves.clone());
                let fill = move |step, batch: &mut Batch| {
                    batch.fill(step, &order, corpus.train(), MicrobatchFilter::Leaves(&leaves))
                };
                Loader::from_memory(self.shape, world, text, cursor, Box::new(fill))
            }
            BatchSource::Streamed { mixture, recipe, leaves } => {
                let position = (cursor.next_step, &*cursor.positions);
                let fill = mixture::fill(mixture, recipe, leaves, position, world)?;
                // The threads' own deadline comes first, and its error is more specific.
                let stall = 2 * mixture::STALL;
                Loader::from_streams(self.shape, world, text, cursor, stall, fill)
            }
            BatchSource::Served { client, leaves, .. } => {
                let client = client.take().expect("the first loader");
                client.loader(self.shape, world, text, cursor, std::mem::take(leaves))
            }
        }
    }
}

fn ready(client: &mut Option<Box<Client>>) -> &mut Client {
    client.as_deref_mut().expect("no loader has taken it")
}

/// Whether tokens come from text.
fn data_is_text(recipe: &Recipe) -> bool {
    recipe.data.source != Source::Zipf
}

/// Reads the part of the corpus that a worker keeps.
fn read_for(recipe: &Recipe, world: &World, data_rank: &DataRank) -> Result<Corpus, DataError> {
    let data = &recipe.data;
    let own = |path: &str| path.replace(Source::RANK, &data_rank.worker.to_string());
    match data.placement {
        Placement::Local => {
            let held_out = match &data.validation {
                ValidationSource::Path(path) => ValidationSource::Path(own(path)),
                ValidationSource::Fraction(fraction) => ValidationSource::Fraction(*fraction),
            };
            let source = own(&data.source.to_string());
            Corpus::read(recipe, &source, &held_out, &Keep::Everything, world)
        }
        Placement::Partitioned => {
            let leaves = data_rank.leaves.clone();
            let source = data.source.to_string();
            Corpus::read(recipe, &source, &data.validation, &Keep::Leaves(leaves), world)
        }
        Placement::Shared | Placement::Served => Corpus::load(recipe, world),
    }
}

/// Interleaves the validation micro-batches of all workers' local corpora: micro-batch `k` of
/// worker `w` becomes number `k·n + w`, and runs on worker `w`. Workers with fewer micro-batches
/// are padded; targets count over all workers.
pub fn interleave_validation(
    own: Validation,
    recipe: &Recipe,
    worker: usize,
    most_microbatches: usize,
    num_workers: usize,
    num_targets: u64,
) -> Validation {
    let shape = BatchShape::of(recipe);
    let mut own = own.microbatches.into_iter();
    let microbatch = |index: usize| {
        if index % num_workers == worker {
            own.next().unwrap_or_else(|| ValidationMicrobatch::empty(shape, 0))
        } else {
            ValidationMicrobatch {
                inputs: Vec::new(),
                targets: Vec::new(),
                first_sample: 0,
                documents: Vec::new(),
                references: Vec::new(),
            }
        }
    };
    Validation {
        microbatches: (0..most_microbatches * num_workers).map(microbatch).collect(),
        num_targets,
    }
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Feed({}, {})", self.text.name, self.placement)
    }
}
