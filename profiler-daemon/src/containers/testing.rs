//! Names without a runtime, for tests.

use std::sync::Arc;

use super::names::{Container, ContainerLabels, ContainerNames, Pod};

/// What a runtime says of a container.
pub(crate) struct Said<'s> {
    pub(crate) id: String,
    pub(crate) name: &'s str,
    pub(crate) image: &'s str,
    pub(crate) pod: &'s str,
    pub(crate) namespace: &'s str,
    pub(crate) uid: String,
    pub(crate) labels: &'s [(&'s str, &'s str)],
}

/// The names that follow.
pub(crate) fn names(said: &[Said<'_>]) -> ContainerNames {
    let mut names = ContainerNames::default();
    for one in said {
        let labels =
            ContainerLabels::of(one.labels.iter().map(|(key, text)| (key.as_bytes(), text.as_bytes())));
        let pod = Pod::new(one.namespace.as_bytes(), one.pod.as_bytes(), one.uid.as_bytes(), labels);
        let (name, image) = (Some(one.name.to_owned()), Some(one.image.to_owned()));
        names.insert(one.id.as_bytes(), Container { name, image, pod: pod.map(Arc::new) });
    }
    names
}
