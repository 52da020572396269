//! Evaluation tasks: multiple choice by log-likelihood, from local files in the format of
//! lm-evaluation-harness (Gao et al. 2021).
//!
//! A task file names data files, and templates that make the text, the choices and the answer of a
//! document. Each choice becomes a request: a context, and the continuation whose log-likelihood
//! counts. Prompts, examples, the boundary between the tokens of context and continuation and
//! scores are those of lm-evaluation-harness 0.4, so its results can be compared.
//!
//! # Layout
//!
//! - `yaml`, `settings`: the task file
//! - `documents`: the data files
//! - `template`, `python_text`: Jinja with Python's values
//! - `prompt`: questions of documents; `python_random`: the choice of examples
//! - `score`: metrics
//! - [`error`]: errors of a task

mod python_random;
mod python_text;
mod template;
mod yaml;

mod documents;
mod prompt;
mod score;
mod settings;

pub mod error;

use std::path::{Path, PathBuf};

use lockstep_platform::Files;

use self::documents::Document;
use self::prompt::{Content, Description, FieldError, QuestionReader, Record, Text};
use self::python_random::PythonRandom;
use self::settings::{ExampleSource, Sampler, Settings};
use crate::error::DataError;
use crate::tokenizer::Tokenizer;

pub use error::TaskError;
pub use score::{Choice, Metric, Question, Score};

/// Seed by which lm-evaluation-harness draws examples.
const EXAMPLE_SEED: u32 = 1234;

/// Settings of a command for all tasks.
#[derive(Debug, Clone, Copy, Default)]
pub struct TaskOptions {
    /// Examples in front of each question, in place of the task's own number.
    pub num_examples: Option<usize>,
    /// Most questions, from the first on.
    pub limit: Option<usize>,
}

/// A task with its prompts.
#[derive(Debug)]
pub struct Task {
    path: PathBuf,
    name: String,
    num_examples: usize,
    metrics: Vec<Metric>,
    prompts: Vec<Prompt>,
}

/// Contexts and continuations of a question.
#[derive(Debug)]
struct Prompt {
    pairs: Vec<(String, String)>,
    question: Question,
}

/// Tokens whose log-likelihood counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Context, then continuation.
    pub tokens: Vec<u32>,
    /// Number of tokens of the continuation.
    pub num_targets: usize,
}

impl Task {
    /// Reads a task and its data, and makes its prompts.
    pub fn open(path: &Path, options: TaskOptions, files: &dyn Files) -> Result<Self, DataError> {
        let settings = Settings::read(path, files)?;
        let num_examples = options.num_examples.unwrap_or(settings.num_examples);
        let documents = documents::read(&settings.files_of(&settings.split, files)?, files)?;
        let examples = if num_examples > 0 { examples_of(&settings, files)? } else { Vec::new() };
        let writer = PromptWriter::new(&settings, &documents, &examples, num_examples)?;
        let mut random = PythonRandom::new(EXAMPLE_SEED);
        let limit = options.limit.unwrap_or(usize::MAX);
        let prompts = documents.iter().take(limit).enumerate();
        let prompts = prompts.map(|(index, _)| writer.prompt(index, &mut random));
        Ok(Self {
            path: settings.path.clone(),
            prompts: prompts.collect::<Result<_, TaskError>>()?,
            name: settings.name,
            num_examples,
            metrics: settings.metrics,
        })
    }

    /// Name of the task.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of examples in front of each question.
    pub const fn num_examples(&self) -> usize {
        self.num_examples
    }

    /// Number of questions.
    pub fn num_questions(&self) -> usize {
        self.prompts.len()
    }

    /// Number of choices of each question.
    pub fn num_choices(&self) -> impl Iterator<Item = usize> {
        self.prompts.iter().map(|prompt| prompt.pairs.len())
    }

    /// Requests of all choices of all questions, for a model with this tokenizer and context.
    pub fn requests(
        &self,
        tokenizer: &Tokenizer,
        context: usize,
    ) -> Result<Vec<Request>, DataError> {
        let mut requests = Vec::new();
        for (document, prompt) in self.prompts.iter().enumerate() {
            for (choice, (before, after)) in prompt.pairs.iter().enumerate() {
                let Some(mut request) = Request::new(before, after, tokenizer)? else {
                    return Err(
                        TaskError::EmptyContext { path: self.path.clone(), document }.into()
                    );
                };
                let (path, num_tokens) = (self.path.clone(), request.num_targets);
                if num_tokens == 0 {
                    return Err(TaskError::EmptyChoice { path, document, choice }.into());
                }
                if num_tokens > context {
                    let error =
                        TaskError::LongChoice { path, document, choice, num_tokens, context };
                    return Err(error.into());
                }
                // The model does not read the last token; a long context loses its start.
                let surplus = request.tokens.len().saturating_sub(context + 1);
                request.tokens.drain(..surplus);
                requests.push(request);
            }
        }
        Ok(requests)
    }

    fn questions(&self) -> Vec<Question> {
        self.prompts.iter().map(|prompt| prompt.question.clone()).collect()
    }

    /// Mean log-likelihood of the right choices; none where no document names one.
    pub fn mean_log_likelihood(&self, log_likelihoods: &[f64]) -> Option<f64> {
        score::mean_log_likelihood(&self.questions(), log_likelihoods)
    }

    /// Scores by all metrics of the task, from the log-likelihoods of all requests.
    pub fn scores(&self, log_likelihoods: &[f64]) -> Vec<Score> {
        let questions = self.questions();
        let score = |metric: &Metric| Score::of(*metric, &questions, log_likelihoods);
        self.metrics.iter().map(score).collect()
    }
}

/// Documents from which the examples of a task are chosen.
fn examples_of(settings: &Settings, files: &dyn Files) -> Result<Vec<Document>, DataError> {
    match &settings.examples {
        ExampleSource::Split(split) => documents::read(&settings.files_of(split, files)?, files),
        ExampleSource::Documents(documents) => {
            let object = |document: &yaml::Yaml| match document.to_json() {
                serde_json::Value::Object(object) => Ok(object),
                _ => Err(TaskError::Key {
                    path: settings.path.clone(),
                    key: "fewshot_config.samples".to_owned(),
                    reason: "has an entry that is not a mapping".to_owned(),
                }),
            };
            Ok(documents.iter().map(object).collect::<Result<_, _>>()?)
        }
    }
}

/// Writes the prompts of a task.
struct PromptWriter<'a> {
    settings: &'a Settings,
    documents: &'a [Document],
    examples: &'a [Document],
    num_examples: usize,
    reader: QuestionReader,
    example_reader: Option<QuestionReader>,
    description: Option<Description>,
    /// Whether the texts of the task are its choices.
    has_several_texts: bool,
}

impl<'a> PromptWriter<'a> {
    fn new(
        settings: &'a Settings,
        documents: &'a [Document],
        examples: &'a [Document],
        num_examples: usize,
    ) -> Result<Self, TaskError> {
        let failed = |error| template_error(settings, 0, error);
        let Some(first) = documents.first() else {
            let reason = "has no documents".to_owned();
            return Err(TaskError::Key {
                path: settings.path.clone(),
                key: settings.split.clone(),
                reason,
            });
        };
        let reader = QuestionReader::new(&settings.fields, first).map_err(failed)?;
        let columns = examples.first();
        let example_reader =
            columns.map(|columns| QuestionReader::new(&settings.example_fields, columns));
        let description =
            settings.description.as_ref().map(|description| Description::new(description, first));
        let content = reader.read(&Record::new(first)).map_err(failed)?;
        Ok(Self {
            settings,
            documents,
            examples,
            num_examples,
            reader,
            example_reader: example_reader.transpose().map_err(failed)?,
            description: description.transpose().map_err(failed)?,
            has_several_texts: matches!(content.text, Text::Number(_)),
        })
    }

    fn prompt(&self, index: usize, random: &mut PythonRandom) -> Result<Prompt, TaskError> {
        let failed = |error| template_error(self.settings, index, error);
        let document = &self.documents[index];
        let record = Record::new(document);
        let mut begin = String::new();
        if let Some(description) = &self.description {
            begin = description.render(&record).map_err(failed)?;
        }
        for example in self.choose_examples(document, random)? {
            let reader = self.example_reader.as_ref().expect("there are examples");
            let text = reader.example(&Record::new(&self.examples[example]));
            begin += &text.map_err(|error| template_error(self.settings, example, error))?;
            begin += &self.settings.example_delimiter;
        }
        let Content { text, choices, answer } = self.reader.read(&record).map_err(failed)?;
        let delimiter = self.reader.target_delimiter();
        let (pairs, answers) = match text {
            Text::Number(number) if self.has_several_texts => {
                let end = format!("{delimiter}{}", answer.to_text().map_err(failed)?);
                let pair = |choice: &String| (format!("{begin}{choice}"), end.clone());
                let answers = Some(number).filter(|number| *number < choices.len());
                (choices.iter().map(pair).collect(), answers.into_iter().collect())
            }
            text => {
                let text = match text {
                    Text::Question(text) => text,
                    Text::Number(number) => number.to_string(),
                };
                let context = begin + &text;
                let pair = |choice: &String| (context.clone(), format!("{delimiter}{choice}"));
                (choices.iter().map(pair).collect(), answer.numbers(&choices))
            }
        };
        let length =
            |choice: &String| Choice { num_chars: choice.chars().count(), num_bytes: choice.len() };
        let choices = choices.iter().map(length).collect();
        Ok(Prompt { pairs, question: Question { choices, answers } })
    }

    /// Indices of the examples in front of a document, which is not among them.
    fn choose_examples(
        &self,
        document: &Document,
        random: &mut PythonRandom,
    ) -> Result<Vec<usize>, TaskError> {
        let Settings { sampler, excludes_question, .. } = *self.settings;
        let num = self.num_examples;
        let mut chosen = match sampler {
            _ if num == 0 => return Ok(Vec::new()),
            Sampler::First => (0..self.examples.len()).collect(),
            Sampler::Random => {
                // One more than needed: the question may be drawn.
                let num_drawn = num + usize::from(excludes_question);
                let all = u32::try_from(self.examples.len()).unwrap_or(u32::MAX);
                if num_drawn > all as usize { Vec::new() } else { random.sample(all, num_drawn) }
            }
        };
        if excludes_question {
            chosen.retain(|example| self.examples[*example] != *document);
        }
        chosen.truncate(num);
        if chosen.len() < num {
            return Err(TaskError::TooFewExamples {
                path: self.settings.path.clone(),
                num_shots: num,
                num_documents: self.examples.len(),
            });
        }
        Ok(chosen)
    }
}

fn template_error(settings: &Settings, document: usize, (key, reason): FieldError) -> TaskError {
    TaskError::Template { path: settings.path.clone(), key, document, reason }
}

impl Request {
    /// Tokens of a context and its continuation: those of the whole text, cut where the context's
    /// own tokens end. Spaces at the end of the context belong to the continuation, because most
    /// vocabularies join them to a word. `None` where the context has no token.
    fn new(
        context: &str,
        continuation: &str,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Self>, DataError> {
        if context.is_empty() {
            let mut tokens = Vec::new();
            tokenizer.encode(continuation, &mut tokens)?;
            let Some(start) = tokenizer.start_of_text() else { return Ok(None) };
            if tokens.first() != Some(&start) {
                tokens.insert(0, start);
            }
            let num_targets = tokens.len() - 1;
            return Ok(Some(Self { tokens, num_targets }));
        }
        let trimmed = context.trim_end();
        let mut tokens = tokenizer.encode_with_special_tokens(trimmed)?;
        let whole = tokenizer.encode_with_special_tokens(&format!("{context}{continuation}"))?;
        if tokens.is_empty() {
            return Ok(None);
        }
        let targets = &whole[tokens.len().min(whole.len())..];
        tokens.extend_from_slice(targets);
        Ok(Some(Self { num_targets: targets.len(), tokens }))
    }
}

#[cfg(test)]
mod tests;
