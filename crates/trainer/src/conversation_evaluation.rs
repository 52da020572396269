//! Evaluation of a run on conversations as it was trained: the loss of the answers, or of
//! preferences against the model before training (DPO, Rafailov et al. 2023).
//!
//! All held-out conversations are evaluated, each in a sequence of its own, or packed with a
//! document mask as in training. Losses are added in order in `f64`.

use crate::TrainError;
use crate::adapter_folder::ModelPath;
use crate::evaluation_model::{EvaluationModel, ModelFolder};
use crate::pretrained::Pretrained;
use lockstep_config::{DataFormat, DeviceChoice};
use lockstep_data::{ConversationCounts, Corpus, Validation, validation_microbatches};
use lockstep_model::{Microbatch, MicrobatchShape};
use lockstep_platform::World;
use lockstep_tensor::device::View;
use lockstep_tensor::math::scalar;
use serde::Serialize;

/// Sequences in a micro-batch: whole pairs.
const MICROBATCH_SEQUENCES: usize = 4;

/// Quality of a model on the held-out conversations of its run. Field names are stable: scripts
/// rely on them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConversationEvaluation {
    /// Name of the data.
    pub data: String,
    /// Mean loss: nats per answered token, or per pair.
    pub loss: f64,
    /// `exp` of the loss of answers; null for pairs.
    pub perplexity: Option<f64>,
    /// Fraction of the pairs whose chosen answer has gained more probability than the rejected
    /// one; null for answers.
    pub accuracy: Option<f64>,
    /// Mean of `finetune.beta` times how much more it has gained, in nats; null for answers.
    pub margin: Option<f64>,
    /// Number of held-out conversations or pairs.
    pub num_conversations: u64,
    /// Number of answered tokens, or of pairs: the denominator of the loss.
    pub num_targets: u64,
}

/// Whether a folder is a run on conversations.
pub fn is_run_on_conversations<'a>(
    folder: impl Into<ModelPath<'a>>,
    world: &World,
) -> Result<bool, TrainError> {
    let pretrained = Pretrained::open(folder, world)?;
    let has_own = pretrained.base_of_adapters().is_none();
    let recipe = pretrained.run_recipe().filter(|_| has_own);
    Ok(recipe.is_some_and(|recipe| recipe.data.format == DataFormat::Chat))
}

/// Evaluates the held-out conversations of a run.
pub fn evaluate_conversations<'a>(
    folder: impl Into<ModelPath<'a>>,
    device: DeviceChoice,
    world: &World,
) -> Result<ConversationEvaluation, TrainError> {
    let folder = ModelFolder::open(folder, device, world)?;
    let corpus = Corpus::load(&folder.recipe, world)?;
    let tokens = folder.recipe.model.context;
    let shape = MicrobatchShape { sequences: MICROBATCH_SEQUENCES, tokens };
    let mut recipe = folder.recipe.clone();
    (recipe.train.microbatch_size, recipe.train.batch) = (shape.sequences, shape.sequences);
    recipe.train.eval_batches = corpus.num_tokens();
    let validation = validation_microbatches(&recipe, &corpus)?;
    let counts = corpus.conversations().unwrap_or_default();
    let mut found = ConversationEvaluation {
        data: corpus.name().to_owned(),
        loss: f64::NAN,
        perplexity: None,
        accuracy: None,
        margin: None,
        num_conversations: counts.num - counts.num_train,
        num_targets: validation.num_targets,
    };
    let mut model = folder.load(shape, world)?;
    if let ConversationCounts { has_pairs: true, .. } = counts {
        let mut reference = folder.load_reference(shape, world)?;
        let num = 2 * validation.num_targets as usize;
        let [own, before] = [&mut model, &mut reference].map(|model| {
            let mut losses = sequence_losses(model, shape, &validation)?;
            losses.truncate(num);
            Ok::<_, TrainError>(losses)
        });
        found.add_pairs(&own?, &before?, recipe.finetune.beta);
    } else {
        let num = validation.microbatches.len();
        let microbatch = |index| microbatch_of(shape, &validation, index);
        let nats = model.replica.evaluate(&model.cpu, num, &microbatch)?;
        found.loss = nats / validation.num_targets as f64;
        found.perplexity = Some(scalar::exp(found.loss));
    }
    Ok(found)
}

impl ConversationEvaluation {
    /// Adds what pairs give, from the losses of all sequences under the model and its reference.
    fn add_pairs(&mut self, own: &[f64], before: &[f64], beta: f64) {
        let gains: Vec<f64> = own.iter().zip(before).map(|(own, before)| before - own).collect();
        let margins = gains.chunks_exact(2).map(|pair| beta * (pair[0] - pair[1]));
        let margins: Vec<f64> = margins.collect();
        let mean = |sum: f64| sum / margins.len() as f64;
        // ln(1 + exp(-x)) without an overflow of the exponential.
        let loss = |x: &f64| (-x).max(0.0) + scalar::ln(1.0 + scalar::exp(-x.abs()));
        self.loss = mean(margins.iter().map(loss).sum());
        self.accuracy = Some(mean(margins.iter().filter(|x| **x > 0.0).count() as f64));
        self.margin = Some(mean(margins.iter().sum()));
    }
}

fn microbatch_of(shape: MicrobatchShape, validation: &Validation, index: usize) -> Microbatch<'_> {
    let of = &validation.microbatches[index];
    Microbatch {
        shape,
        inputs: View::of(&of.inputs),
        targets: View::of(&of.targets),
        first_sample: of.first_sample,
        num_targets: 1,
        documents: (!of.documents.is_empty()).then(|| View::of(&of.documents)),
        preferences: None,
    }
}

/// Loss of every sequence.
fn sequence_losses(
    model: &mut EvaluationModel,
    shape: MicrobatchShape,
    validation: &Validation,
) -> Result<Vec<f64>, TrainError> {
    let microbatch = |index| microbatch_of(shape, validation, index);
    let num = validation.microbatches.len();
    Ok(model.replica.sequence_losses(&model.cpu, num, &microbatch)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_have_the_loss_of_the_formula() {
        let mut found = ConversationEvaluation {
            data: String::new(),
            loss: f64::NAN,
            perplexity: None,
            accuracy: None,
            margin: None,
            num_conversations: 2,
            num_targets: 2,
        };
        // The first chosen answer gains 3 nats and its rejected one 1; of the second 0 and 1.
        found.add_pairs(&[2.0, 4.0, 3.0, 1.0], &[5.0, 5.0, 3.0, 2.0], 0.5);
        let pair = |margin: f64| (1.0 + (-margin).exp()).ln();
        let expected = f64::midpoint(pair(1.0), pair(-0.5));
        assert!((found.loss - expected).abs() < 1e-15, "{found:?}");
        assert_eq!(found.accuracy.map(f64::to_bits), Some(0.5_f64.to_bits()));
        assert_eq!(found.margin.map(f64::to_bits), Some(0.25_f64.to_bits()));
    }
}
