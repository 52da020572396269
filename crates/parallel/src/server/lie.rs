//! A worker that lies about its gradient, to see what becomes of it.

use crate::replica::Replica;
use crate::robust::norm;
use lockstep_config::FederatedAttack;
use lockstep_tensor::random::Key;

/// How much longer a lie is than the truth.
const BOAST: f32 = 10.0;

/// How a worker lies.
pub(super) struct Liar {
    attack: FederatedAttack,
    /// The first gradient, for one that says it again and again.
    first: Vec<Vec<f32>>,
}

impl Replica {
    /// From now on this worker lies, where it is told how.
    pub fn lie_as(&mut self, attack: Option<FederatedAttack>) {
        if let Some(client) = &mut self.client {
            client.liar = attack.map(|attack| Liar { attack, first: Vec::new() });
        }
    }

    /// Makes a lie of the gradient of a step, where this worker lies.
    pub fn lie(&mut self, seed: u64, step: u64) {
        let Self { client: Some(client), store, .. } = self else { return };
        let (position, buckets) = (client.comm.position() as u64, client.ranges.list.len());
        let Some(liar) = &mut client.liar else { return };
        let key = Key::new(seed, "server.lies").with(step).with(position);
        for bucket in 0..buckets {
            let grads = store.own_grads_mut(bucket);
            match liar.attack {
                FederatedAttack::SignFlip => grads.iter_mut().for_each(|x| *x *= -BOAST),
                FederatedAttack::Noise => {
                    let each = norm(grads) / (grads.len().max(1) as f64).sqrt();
                    let (size, key) = (BOAST * each as f32, key.with(bucket as u64));
                    for (index, x) in (0..).zip(grads) {
                        *x = key.normal(index) * size;
                    }
                }
                FederatedAttack::Stale => match liar.first.get(bucket) {
                    Some(first) => grads.copy_from_slice(first),
                    None => liar.first.push(grads.to_vec()),
                },
            }
        }
    }
}
