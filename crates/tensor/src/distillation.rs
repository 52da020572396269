//! Knowledge distillation (Hinton et al. 2015): a student learns from the targets and from the
//! distribution of a teacher, both softened by a temperature T.
//!
//! ```text
//! p = softmax(y / T), q = softmax(z / T)
//! loss = (1 - w) * cross-entropy(z) + w * T^2 * KL(p || q)
//! gradient of z = (1 - w) * (softmax(z) - one-hot) + w * T * (q - p)
//! ```
//!
//! z are the logits of the student and y those of the teacher. The gradient overwrites z, divided
//! by the number of targets in the whole batch. The maximum of a row is taken off before its
//! exponentials, which both passes over the row compute: of the teacher nothing but its logits
//! exists.
//!
//! Sums are those of [`crate::cross_entropy`]: sixteen accumulators and one tree. The divergence is
//! `sum(e^a * (a - b)) / sum(e^a) + ln sum(e^b) - ln sum(e^a)`, where a and b are the teacher's and
//! the student's softened logits less their maxima; its last three terms are in `f64`.
//!
//! Shapes: t tokens (rows), v vocabulary (columns).

use crate::Cpu;
use crate::cross_entropy::{IGNORE, check_shapes, load, row_max, rows_per_task, token_loss};
use crate::math::{exp, scalar};
use crate::reduce::groups::{num_groups, store};
use crate::simd::{Kernel, Simd};

/// Settings of the loss.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Temperature of both distributions.
    pub temperature: f32,
    /// Share of the teacher's term; the targets have the rest.
    pub weight: f32,
}

/// Sets `losses_t` to the loss of each token and turns the logits of the student into their
/// gradient; both are 0 in ignored rows.
///
/// `num_targets` counts the targets of the whole batch, over all micro-batches and workers.
pub fn forward_backward(
    cpu: &Cpu,
    logits_tv: &mut [f32],
    teacher_tv: &[f32],
    targets: &[u32],
    num_targets: u64,
    settings: Settings,
    losses_t: &mut [f32],
) {
    let vocab = teacher_tv.len() / targets.len();
    check_shapes(logits_tv, vocab, targets, losses_t);
    assert_eq!(logits_tv.len(), teacher_tv.len(), "the vocabulary of the teacher");
    let rows = rows_per_task(vocab);
    cpu.for_each_split([logits_tv, losses_t], [rows * vocab, rows], |i, [logits_tv, losses_t]| {
        let teacher_tv = &teacher_tv[i * rows * vocab..][..logits_tv.len()];
        let targets = &targets[i * rows..];
        cpu.run(Distill { logits_tv, teacher_tv, targets, num_targets, settings, losses_t });
    });
}

struct Distill<'a> {
    logits_tv: &'a mut [f32],
    teacher_tv: &'a [f32],
    targets: &'a [u32],
    num_targets: u64,
    settings: Settings,
    losses_t: &'a mut [f32],
}

impl Kernel for Distill<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { settings: Settings { temperature, weight }, num_targets, .. } = self;
        let vocab = self.teacher_tv.len() / self.losses_t.len();
        let rows = self.logits_tv.chunks_exact_mut(vocab).zip(self.teacher_tv.chunks_exact(vocab));
        let (inverse, lowest) = (s.splat(1.0 / temperature), s.splat(f32::MIN));
        let (t, w, num) = (f64::from(temperature), f64::from(weight), num_targets as f64);
        for (((z, y), &target), loss) in rows.zip(self.targets).zip(self.losses_t) {
            if target == IGNORE {
                *loss = 0.0;
                z.fill(0.0);
                continue;
            }
            let target = target as usize;
            let (max_z, max_y, target_logit) = (row_max(s, z), row_max(s, y), z[target]);
            let target_of_teacher = y[target];
            // Exponents of the student and of both softened, and their exponentials.
            let group = |z: &[f32], i: usize| {
                let of_student = s.sub(load(s, z, i), s.splat(max_z));
                let b = s.mul(of_student, inverse);
                let a = s.mul(s.sub(load(s, y, i), s.splat(max_y)), inverse);
                ([b, a], [of_student, b, a].map(|x| exp(s, x)))
            };
            let (mut sums, mut distance) = ([s.zero(); 3], s.zero());
            for i in 0..num_groups(z) {
                let ([b, a], exponentials) = group(z, i);
                for (sum, e) in sums.iter_mut().zip(exponentials) {
                    *sum = s.add(*sum, e);
                }
                // Exponents of missing columns are infinite, and have no difference.
                let difference = s.sub(s.max(a, lowest), s.max(b, lowest));
                distance = s.fma(exponentials[2], difference, distance);
            }
            let [sum, sum_b, sum_a] = sums.map(|sum| f64::from(s.reduce_add(sum)));
            let hard = f64::from(token_loss(max_z, sum as f32, target_logit));
            let divergence = f64::from(s.reduce_add(distance)) / sum_a;
            let divergence = divergence + (scalar::ln(sum_b) - scalar::ln(sum_a));
            *loss = ((1.0 - w) * hard + w * t * t * divergence) as f32;

            let factors = [(1.0 - w) / (sum * num), w * t / (sum_b * num), w * t / (sum_a * num)];
            let of_groups = factors.map(|factor| s.splat(factor as f32));
            for i in 0..num_groups(z) {
                let (_, [hard, student, teacher]) = group(z, i);
                let soft = s.sub(s.mul(student, of_groups[1]), s.mul(teacher, of_groups[2]));
                store(s, s.fma(hard, of_groups[0], soft), z, i);
            }
            // The target's gradient has a difference of two numbers near 1 once the model is good,
            // so it alone is computed in f64.
            let of_student = f64::from(target_logit) - f64::from(max_z);
            let of_teacher = f64::from(target_of_teacher) - f64::from(max_y);
            let [hard, student, teacher] =
                [of_student, of_student / t, of_teacher / t].map(scalar::exp);
            let hard = (1.0 - w) * (hard / sum - 1.0);
            z[target] = ((hard + w * t * (student / sum_b - teacher / sum_a)) / num) as f32;
        }
    }
}
