//! How the text reaches a worker: it reads all of it, keeps its parts of it, has one of its own, or
//! is sent what it needs.
//!
//! Whatever the way, a worker gets the micro-batches that it runs and the number of targets of the whole
//! batch, and an evaluation gets its fixed micro-batches. *Shared* and *served* give the same batches.
//! *Partitioned* cuts the text into as many parts as the gradient sum has leaves, so which samples
//! meet is another function of the recipe, but still none of the workers. *Local* texts are known
//! to one worker each: which samples a batch has then depends on who is there.

use std::fmt;
use std::sync::Arc;

use lockstep_config::{HeldOut, Placement, Recipe, Source};
use lockstep_platform::World;

use crate::baseline::{baseline_loss, baseline_name};
use crate::batch::{Batch, BatchShape, Wanted};
use crate::corpus::{Corpus, Keep, combined};
use crate::cursor::Cursor;
use crate::deal::Deal;
use crate::error::DataError;
use crate::loader::{Loader, TextName};
use crate::partition::Partition;
use crate::problem;
use crate::serve::Client;
use crate::validation::{Validation, ValidationMicrobatch, microbatches_of};

/// A worker's place in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    /// Its number.
    pub worker: usize,
    /// How many workers there are.
    pub num_workers: usize,
    /// The leaves of the gradient sum that it computes; their micro-batches are its own.
    pub leaves: Vec<usize>,
}

impl Seat {
    /// The only worker of a recipe.
    pub fn alone(recipe: &Recipe) -> Self {
        Self { worker: 0, num_workers: 1, leaves: (0..recipe.num_leaves()).collect() }
    }

    /// A worker of whom nothing is known but its number, to see whether its text can be read.
    pub fn unknown(recipe: &Recipe, worker: usize) -> Self {
        Self { worker, num_workers: recipe.parallel.data, leaves: vec![0] }
    }
}

/// A worker's text, and what comes of it.
pub struct Feed {
    placement: Placement,
    shape: BatchShape,
    text: TextName,
    vocab: usize,
    is_bytes: bool,
    way: Way,
}

/// Where batches come from.
enum Way {
    Own {
        corpus: Arc<Corpus>,
        deal: Deal,
        leaves: Vec<bool>,
        limit: usize,
    },
    /// A small problem has no text: its samples are made from their numbers.
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
    /// Opens the text of a recipe for a worker.
    pub fn open(recipe: &Recipe, world: &World, seat: &Seat) -> Result<Self, DataError> {
        let placement = recipe.data.placement;
        let shape = BatchShape::largest(recipe);
        // Clients live anywhere, and have micro-batches of no leaf.
        let mut leaves = vec![recipe.is_federated(); recipe.num_leaves()];
        seat.leaves.iter().for_each(|&leaf| leaves[leaf] = true);
        if recipe.model.family.is_problem() {
            let corpus = problem::corpus(recipe)?;
            return Ok(Self {
                placement,
                shape,
                text: TextName::of(&corpus),
                vocab: corpus.vocab(),
                is_bytes: true,
                way: Way::Numbers { recipe: Box::new(recipe.clone()), classes: Vec::new() },
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
                way: Way::Served {
                    baseline_loss: welcome.baseline_loss,
                    client: Some(Box::new(client)),
                    leaves,
                },
            });
        }
        let corpus = read_for(recipe, world, seat)?;
        let deal = Deal::of(recipe, corpus.name(), corpus.train(), &leaves)?;
        let limit = recipe.train.eval_batches * recipe.train.batch;
        Ok(Self {
            placement,
            shape,
            text: TextName::of(&corpus),
            vocab: corpus.vocab(),
            is_bytes: corpus.tokenizer().is_bytes() && data_is_text(recipe),
            way: Way::Own { corpus: Arc::new(corpus), deal, leaves, limit },
        })
    }

    /// Says of which class every sample of a small problem is, so that they can be divided by it.
    pub fn classify(&mut self, of_samples: Vec<u8>) {
        if let Way::Numbers { classes, .. } = &mut self.way {
            *classes = of_samples;
        }
    }

    /// Who has which samples, where they are divided into parts.
    pub fn partition(&self) -> Option<Partition> {
        match &self.way {
            Way::Own { deal, .. } => deal.partition().cloned(),
            Way::Numbers { recipe, classes } => {
                recipe.has_parts().then(|| Partition::new(recipe, classes.clone()))
            }
            Way::Served { .. } => None,
        }
    }

    /// Whether the samples depend on the workers, so that no two layouts give the same bits.
    pub fn depends_on_workers(&self) -> bool {
        self.placement == Placement::Local
    }

    /// The name of the text, for messages.
    pub fn name(&self) -> &str {
        &self.text.name
    }

    /// The [fingerprint](Corpus::fingerprint) of the text.
    pub fn fingerprint(&self) -> &str {
        &self.text.fingerprint
    }

    /// Where every worker has a text of its own, all their fingerprints together are the run's.
    pub fn all_fingerprints(&mut self, by_worker: impl IntoIterator<Item = u64>) {
        let texts = by_worker.into_iter().map(|number| format!("{number:016x}"));
        self.text.fingerprint = combined(texts);
    }

    /// How many different tokens the text may have.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Memory that tokens take in this process, without what is mapped.
    pub fn held_bytes(&self) -> usize {
        match &self.way {
            Way::Own { corpus, .. } => corpus.held_bytes(),
            Way::Numbers { .. } | Way::Served { .. } => 0,
        }
    }

    /// The loss of a model that knows frequencies only; see [`crate::baseline`].
    pub fn baseline_loss(&self) -> f64 {
        match &self.way {
            Way::Own { corpus, .. } => baseline_loss(corpus),
            // The problem itself knows what a solution is worth.
            Way::Numbers { .. } => f64::NAN,
            Way::Served { baseline_loss, .. } => *baseline_loss,
        }
    }

    /// What that model knows, in words.
    pub fn baseline_name(&self) -> &'static str {
        baseline_name(self.vocab, self.is_bytes)
    }

    /// The content of the text's `tokenizer.json`; nothing where a token is a byte.
    ///
    /// # Panics
    /// After [`Self::loader`], where the text is served.
    pub fn tokenizer_json(&mut self) -> Result<Option<Vec<u8>>, DataError> {
        match &mut self.way {
            Way::Own { corpus, .. } => Ok(corpus.tokenizer().json().map(<[u8]>::to_vec)),
            Way::Numbers { .. } => Ok(None),
            Way::Served { client, .. } => ready(client).tokenizer_json(),
        }
    }

    /// The micro-batches that the model is judged by. Where every worker has a text of its own these are
    /// this worker's share of them: see [`share_out`].
    ///
    /// # Panics
    /// After [`Self::loader`], where the text is served.
    pub fn validation(&mut self, num_workers: usize) -> Result<Validation, DataError> {
        let is_local = self.placement == Placement::Local;
        match &mut self.way {
            Way::Served { client, .. } => ready(client).validation(),
            Way::Numbers { recipe, .. } => Ok(problem::validation(recipe)),
            Way::Own { corpus, limit, .. } => {
                let limit = if is_local { limit.div_ceil(num_workers) } else { *limit };
                microbatches_of(self.shape, limit, corpus.validation(), corpus.cut())
            }
        }
    }

    /// Starts making the batches of this worker at `cursor`.
    ///
    /// # Panics
    /// When called twice, where the text is served.
    pub fn loader(&mut self, world: &World, cursor: Cursor) -> Result<Loader, DataError> {
        let text = self.text.clone();
        match &mut self.way {
            Way::Numbers { recipe, classes } => {
                let fill = Box::new(problem::fill(recipe, classes.clone()));
                Loader::from_memory(self.shape, world, text, cursor, fill)
            }
            Way::Own { corpus, deal, leaves, .. } => {
                let (corpus, deal, leaves) = (Arc::clone(corpus), deal.clone(), leaves.clone());
                let fill = move |step, batch: &mut Batch| {
                    batch.fill(step, &deal, corpus.train(), Wanted::Leaves(&leaves))
                };
                Loader::from_memory(self.shape, world, text, cursor, Box::new(fill))
            }
            Way::Served { client, leaves, .. } => {
                let client = client.take().expect("the first loader");
                client.loader(self.shape, world, text, cursor, std::mem::take(leaves))
            }
        }
    }
}

fn ready(client: &mut Option<Box<Client>>) -> &mut Client {
    client.as_deref_mut().expect("no loader has taken it")
}

/// Whether tokens come from a text.
fn data_is_text(recipe: &Recipe) -> bool {
    recipe.data.source != Source::Zipf
}

/// Reads what a worker keeps of a recipe's text.
fn read_for(recipe: &Recipe, world: &World, seat: &Seat) -> Result<Corpus, DataError> {
    let data = &recipe.data;
    let own = |path: &str| path.replace(Source::RANK, &seat.worker.to_string());
    match data.placement {
        Placement::Local => {
            let held_out = match &data.validation {
                HeldOut::Path(path) => HeldOut::Path(own(path)),
                HeldOut::Fraction(fraction) => HeldOut::Fraction(*fraction),
            };
            let source = own(&data.source.to_string());
            Corpus::read(recipe, &source, &held_out, &Keep::Everything, world)
        }
        Placement::Partitioned => {
            let leaves = seat.leaves.clone();
            let source = data.source.to_string();
            Corpus::read(recipe, &source, &data.validation, &Keep::Leaves(leaves), world)
        }
        Placement::Shared | Placement::Served => Corpus::load(recipe, world),
    }
}

/// Puts the micro-batches of one worker's own text among those of all workers: micro-batch `k` of worker `w` is
/// micro-batch `k·n + w` of the evaluation, where worker `w` runs it. All have as many micro-batches as the one
/// that has the most, and targets are counted over all of them.
pub fn share_out(
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
            ValidationMicrobatch { inputs: Vec::new(), targets: Vec::new(), first_sample: 0 }
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
