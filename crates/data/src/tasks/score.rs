//! Scores of multiple choice by log-likelihood: the choice with the largest one is the answer.

/// How the log-likelihoods of a question's choices are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// As they are.
    Accuracy,
    /// Divided by the characters of the choice.
    AccuracyByChars,
    /// Divided by the bytes of the choice.
    AccuracyByBytes,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Accuracy, Self::AccuracyByChars, Self::AccuracyByBytes];

    /// Name in task files and results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "acc",
            Self::AccuracyByChars => "acc_norm",
            Self::AccuracyByBytes => "acc_bytes",
        }
    }

    /// The metric with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|metric| metric.name() == name)
    }

    /// Divisor of a choice's log-likelihood.
    fn len(self, choice: &Choice) -> f64 {
        match self {
            Self::Accuracy => 1.0,
            Self::AccuracyByChars => choice.num_chars as f64,
            Self::AccuracyByBytes => choice.num_bytes as f64,
        }
    }

    /// Whether the likeliest choice of a question is right.
    pub fn is_right(self, question: &Question, log_likelihoods: &[f64]) -> bool {
        assert_eq!(log_likelihoods.len(), question.choices.len(), "one per choice");
        let weighed = question.choices.iter().zip(log_likelihoods);
        let mut best = (0, f64::NEG_INFINITY);
        for (index, (choice, log_likelihood)) in weighed.enumerate() {
            let value = log_likelihood / self.len(choice);
            // The first of equals.
            if value > best.1 {
                best = (index, value);
            }
        }
        question.answers.contains(&best.0)
    }
}

/// A question with its choices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Choices, in order.
    pub choices: Vec<Choice>,
    /// Indices of the right choices; none where the document names no choice.
    pub answers: Vec<usize>,
}

/// Length of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// Number of characters.
    pub num_chars: usize,
    /// Number of bytes in UTF-8.
    pub num_bytes: usize,
}

/// Mean of a metric over the questions of a task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// Metric.
    pub metric: Metric,
    /// Fraction of right answers.
    pub value: f64,
    /// Standard error of the mean; none for a single question.
    pub standard_error: Option<f64>,
}

/// Mean log-likelihood of the right choices of questions that have one, the likeliest where several
/// are right; none without such a question. It moves where a score still is that of guessing.
pub(super) fn mean_log_likelihood(questions: &[Question], log_likelihoods: &[f64]) -> Option<f64> {
    let mut rest = log_likelihoods;
    let (mut sum, mut num) = (0.0, 0usize);
    for question in questions {
        let (own, later) = rest.split_at(question.choices.len());
        rest = later;
        if let Some(best) = question.answers.iter().map(|answer| own[*answer]).reduce(f64::max) {
            (sum, num) = (sum + best, num + 1);
        }
    }
    (num > 0).then(|| sum / num as f64)
}

impl Score {
    /// Score of answers by a metric; `log_likelihoods` are those of all choices of all questions.
    pub fn of(metric: Metric, questions: &[Question], log_likelihoods: &[f64]) -> Self {
        let mut rest = log_likelihoods;
        let is_right = |question: &&Question| {
            let (own, later) = rest.split_at(question.choices.len());
            rest = later;
            metric.is_right(question, own)
        };
        let num_right = questions.iter().filter(is_right).count() as f64;
        let num = questions.len() as f64;
        let value = num_right / num;
        // The variance of zeros and ones, with n - 1 in the denominator.
        let variance = value * (1.0 - value) / (num - 1.0);
        Self { metric, value, standard_error: (num > 1.0).then(|| variance.sqrt()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(choices: &[&str], answers: &[usize]) -> Question {
        let choice =
            |text: &&str| Choice { num_chars: text.chars().count(), num_bytes: text.len() };
        Question { choices: choices.iter().map(choice).collect(), answers: answers.to_vec() }
    }

    #[test]
    fn metrics_divide_by_the_length_of_a_choice() {
        // Alone -6 wins; by characters the second; by bytes the third.
        let question = question(&["a", "abcd", "éé日"], &[1]);
        let log_likelihoods = [-6.0, -6.8, -6.5];
        let right = Metric::ALL.map(|metric| metric.is_right(&question, &log_likelihoods));
        assert_eq!(right, [false, true, false]);
        let equal = [-2.0, -2.0, -2.0];
        assert!(!Metric::Accuracy.is_right(&question, &equal), "the first of equals");
    }

    #[test]
    fn scores_are_means_with_the_error_of_a_sample() {
        let questions =
            [&[0][..], &[1], &[0, 1], &[]].map(|answers| question(&["a", "b"], answers));
        let log_likelihoods = [-1.0, -2.0].repeat(4);
        let Score { value, standard_error, .. } =
            Score::of(Metric::Accuracy, &questions, &log_likelihoods);
        // numpy.std([1, 0, 1, 0], ddof = 1) / sqrt(4).
        assert!((value - 0.5).abs() < 1e-15);
        assert!((standard_error.unwrap() - 0.288_675_134_594_812_9).abs() < 1e-12);
        let alone = Score::of(Metric::Accuracy, &questions[..1], &log_likelihoods[..2]);
        assert_eq!((alone.value.to_bits(), alone.standard_error), (1.0f64.to_bits(), None));
        // Of the right choices -1, -2 and, as the likelier of two, -1.
        let mean = mean_log_likelihood(&questions, &log_likelihoods).unwrap();
        assert!((mean + 4.0 / 3.0).abs() < 1e-15, "{mean}");
        assert_eq!(mean_log_likelihood(&questions[3..], &log_likelihoods[..2]), None);
    }
}
