//! Vocabulary files of a run: the tokenizer's configuration, the chat template that it was trained
//! with and the tokens that end a text.
//!
//! A run folder keeps them beside its tokenizer, so that it needs no other folder to chat, to train
//! on and to be exported. They come from the folder of `data.tokenizer`, and from `model.from`
//! where that has the same tokenizer. `eos_token_id` begins with the token that training has put at
//! the end of every answer or document.

use crate::TrainError;
use crate::pretrained::Pretrained;
use lockstep_checkpoint::huggingface::{
    self, CHAT_TEMPLATE, COMPANION_FILES, CONFIG, Companions, GENERATION, TOKENIZER,
    TOKENIZER_CONFIG,
};
use lockstep_config::{self as config, DataFormat, Recipe};
use lockstep_data::chat::end::end_of_answer;
use lockstep_data::chat::{ChatError, ChatTemplate, Date};
use lockstep_data::{DataError, Tokenizer};
use lockstep_platform::{FileKind, World};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Key of the tokens that end a text.
const ENDS: &str = "eos_token_id";

/// Class of `transformers` that runs any `tokenizer.json` as it is.
const TOKENIZER_CLASS: &str = "PreTrainedTokenizerFast";

/// Files that lie beside the tokenizer of a run, without the tokenizer. `json` is its content, none
/// for bytes.
pub(crate) fn companions_of_run(
    recipe: &Recipe,
    json: Option<&[u8]>,
    tokenizer: Option<&Tokenizer>,
    world: &World,
) -> Companions {
    let donors = donors(recipe, json, world);
    let mut all = Companions::default();
    for folder in &donors {
        all = all.or(huggingface::companions(world, folder));
    }
    all.files.remove(TOKENIZER);
    let is_chat = recipe.data.format == DataFormat::Chat;
    // The data of a run on conversations were read with it, so a failure is one of later.
    let template = is_chat.then(|| ChatTemplate::of_recipe(recipe, Date::FIXED, world.files()));
    let template = template.and_then(Result::ok);
    let trained = match (&template, tokenizer) {
        (Some(template), Some(tokenizer)) => end_of_answer(template, tokenizer),
        (None, Some(tokenizer)) if recipe.data.end_of_document != "auto" => {
            tokenizer.end_of_document()
        }
        _ => None,
    };
    let mut special_tokens = special_tokens_in(&donors, world);
    let mut ends = ids(special_tokens.get(ENDS));
    let default = tokenizer.and_then(Tokenizer::end_of_document).filter(|_| ends.is_empty());
    // The order of the original model stays, unless the run has trained another end.
    if let Some(end) = trained.or(default).map(u64::from).filter(|end| !ends.contains(end)) {
        ends.insert(0, end);
        let value = if ends.len() == 1 { json!(end) } else { json!(ends) };
        special_tokens.insert(ENDS.to_owned(), value);
    }
    add_special_tokens(&mut all, &special_tokens, world);
    let chosen = template.as_ref().filter(|_| !recipe.finetune.chat_template.is_empty());
    if let Some(template) = chosen {
        all.replace(CHAT_TEMPLATE, template.source().to_owned());
    }
    if json.is_some() {
        let end = ends.first().and_then(|&end| u32::try_from(end).ok()).zip(tokenizer);
        let end = end.map(|(end, tokenizer)| tokenizer.decode(&[end]));
        add_tokenizer_config(&mut all, end, chosen, world);
    }
    all
}

/// Folders with files of this tokenizer, the first being the strongest.
fn donors(recipe: &Recipe, json: Option<&[u8]>, world: &World) -> Vec<PathBuf> {
    let files = world.files();
    let tokenizer = match &recipe.data.tokenizer {
        config::Tokenizer::Byte => None,
        config::Tokenizer::File(path) => {
            let path = Path::new(path);
            let is_file = matches!(files.metadata(path), Some(FileKind::File { .. }));
            if is_file { path.parent() } else { Some(path) }
        }
    };
    let from = (!recipe.from.is_empty()).then(|| Path::new(&recipe.from));
    let from = from.and_then(|from| Pretrained::open(from, world).ok());
    let from = from.as_ref().map(Pretrained::path);
    let mut donors = Vec::new();
    for folder in [tokenizer, from].into_iter().flatten() {
        let has = |name: &&&str| files.metadata(&folder.join(name)).is_some();
        let is_fit = match json {
            Some(json) => files.read(&folder.join(TOKENIZER)).is_ok_and(|own| own == json),
            // A folder of bytes has no vocabulary, but may have a template.
            None => !COMPANION_FILES
                .iter()
                .filter(has)
                .any(|name| ![TOKENIZER_CONFIG, CHAT_TEMPLATE, GENERATION].contains(name)),
        };
        if is_fit && !donors.iter().any(|donor| donor == folder) {
            donors.push(folder.to_owned());
        }
    }
    donors
}

/// Ids of special tokens that the folders name, the first being the strongest.
fn special_tokens_in(folders: &[PathBuf], world: &World) -> Map<String, Value> {
    let mut all = Map::new();
    for path in folders.iter().flat_map(|f| [GENERATION, CONFIG].map(|name| f.join(name))) {
        for (key, value) in huggingface::special_tokens_of(world, &path) {
            if !value.is_null() {
                all.entry(key).or_insert(value);
            }
        }
    }
    all
}

/// Writes the ids into `generation_config.json`, which keeps its other settings.
fn add_special_tokens(all: &mut Companions, special_tokens: &Map<String, Value>, world: &World) {
    let old = object(all, GENERATION, world);
    let mut new = old.clone();
    new.extend(special_tokens.iter().map(|(key, value)| (key.clone(), value.clone())));
    if new != old {
        all.replace(GENERATION, huggingface::json_text(&new));
    }
}

/// Writes `tokenizer_config.json` where there is none. Programs that read the chat template from it
/// find the one that the recipe has chosen.
fn add_tokenizer_config(
    all: &mut Companions,
    end: Option<String>,
    chosen: Option<&ChatTemplate>,
    world: &World,
) {
    let old = object(all, TOKENIZER_CONFIG, world);
    let mut new = old.clone();
    if old.is_empty() {
        new.insert("tokenizer_class".to_owned(), json!(TOKENIZER_CLASS));
        new.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
        new.extend(end.map(|end| ("eos_token".to_owned(), json!(end))));
    }
    if let Some(template) = chosen {
        new.insert("chat_template".to_owned(), json!(template.source()));
    }
    if new != old {
        all.replace(TOKENIZER_CONFIG, huggingface::json_text(&new));
    }
}

/// A file that holds a JSON object; empty without one.
fn object(all: &Companions, name: &str, world: &World) -> Map<String, Value> {
    let bytes = all.read(world, name).ok().flatten().unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// Ids of an option that is a number or a list of them.
fn ids(value: Option<&Value>) -> Vec<u64> {
    match value {
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_u64).collect(),
        other => other.and_then(Value::as_u64).into_iter().collect(),
    }
}

/// Tokens after which a model of a folder ends a text.
pub(crate) fn stops(folder: &Path, tokenizer: &Tokenizer, world: &World) -> Vec<u32> {
    let mut stops = tokenizer.stops(world.files());
    // Bytes have no tokenizer beside which the file could lie.
    if tokenizer.is_bytes() {
        let special_tokens = huggingface::special_tokens_of(world, &folder.join(GENERATION));
        let ends = ids(special_tokens.get(ENDS));
        stops.extend(ends.into_iter().filter_map(|end| u32::try_from(end).ok()));
    }
    stops
}

/// Chat template of a model folder: that of its files, or of the recipe of a run.
pub(crate) fn template_of(
    pretrained: &Pretrained,
    date: Date,
    world: &World,
) -> Result<ChatTemplate, TrainError> {
    let own = ChatTemplate::open(pretrained.path(), date, world.files());
    let Err(DataError::Chat(ChatError::Missing { .. })) = own else { return Ok(own?) };
    let recipe = pretrained.run_recipe();
    let recipe = recipe.filter(|recipe| recipe.data.format == DataFormat::Chat);
    let of_run = recipe.map(|recipe| ChatTemplate::of_recipe(recipe, date, world.files()));
    let dir = || pretrained.path().display().to_string();
    of_run.and_then(Result::ok).ok_or_else(|| TrainError::NoTemplate { dir: dir() })
}
