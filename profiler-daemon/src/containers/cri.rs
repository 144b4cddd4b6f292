//! The Container Runtime Interface of Kubernetes (`runtime.v1`): what is asked and what is read of the answers. Fields that are not
//! needed are skipped. Texts are read as bytes: one that is not UTF-8 would spoil the whole message.

use std::sync::Arc;

use prost::encoding::{DecodeContext, WireType, decode_key, skip_field};
use prost::{DecodeError, Message};
use rustc_hash::FxHashMap;

use super::names::{Container, ContainerLabels, ContainerNames, MAX_CONTAINERS, Pod, text};

/// What is asked, and of what part of the runtime.
pub(super) const CONTAINERS: &str = "/runtime.v1.RuntimeService/ListContainers";
pub(super) const PODS: &str = "/runtime.v1.RuntimeService/ListPodSandbox";
pub(super) const IMAGES: &str = "/runtime.v1.ImageService/ListImages";
/// The state of a container that has ended.
const EXITED: i32 = 2;
/// Longest description of one container, pod or image that is read: Kubernetes allows 256 KiB of annotations.
const MAX_ENTRY_BYTES: usize = 512 << 10;
/// Most images: a node keeps some of each container.
const MAX_IMAGES: usize = MAX_CONTAINERS;
/// What an image begins with that is named by its hash alone.
const HASH: &[u8] = b"sha256:";

/// No filter: all of them.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ListAll {}

/// The containers that have not ended.
#[derive(Debug, Default)]
pub(super) struct Containers(Vec<OneContainer>);

#[derive(Clone, PartialEq, Message)]
struct OneContainer {
    #[prost(bytes = "vec", tag = "1")]
    id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    sandbox: Vec<u8>,
    #[prost(message, optional, tag = "3")]
    metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "4")]
    image: Option<ImageSpec>,
    #[prost(bytes = "vec", tag = "5")]
    image_ref: Vec<u8>,
    #[prost(int32, tag = "6")]
    state: i32,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerMetadata {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct ImageSpec {
    #[prost(bytes = "vec", tag = "1")]
    image: Vec<u8>,
    #[prost(bytes = "vec", tag = "18")]
    user_specified: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Pods(Vec<Sandbox>);

#[derive(Clone, PartialEq, Message)]
struct Sandbox {
    #[prost(bytes = "vec", tag = "1")]
    id: Vec<u8>,
    #[prost(message, optional, tag = "2")]
    metadata: Option<PodMetadata>,
    #[prost(message, repeated, tag = "5")]
    labels: Vec<Pair>,
}

#[derive(Clone, PartialEq, Message)]
struct PodMetadata {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    uid: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    namespace: Vec<u8>,
}

/// An entry of a map of texts.
#[derive(Clone, PartialEq, Message)]
struct Pair {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Images(Vec<Image>);

#[derive(Clone, PartialEq, Message)]
struct Image {
    #[prost(bytes = "vec", tag = "1")]
    id: Vec<u8>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    tags: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "3")]
    digests: Vec<Vec<u8>>,
}

/// What each of the three lists holds in its only field that matters, one entry after the other: decoded whole, a list of
/// nothing but empty entries would take a hundred times its size.
fn entries<T: Message + Default>(
    mut list: &[u8],
    most: usize,
    is_kept: impl Fn(&T) -> bool,
) -> Result<Vec<T>, DecodeError> {
    let mut kept = Vec::new();
    while !list.is_empty() {
        let (field, wire) = decode_key(&mut list)?;
        if (field, wire) != (1, WireType::LengthDelimited) {
            skip_field(wire, field, &mut list, DecodeContext::default())?;
            continue;
        }
        let mut entry = Vec::new();
        prost::encoding::bytes::merge(wire, &mut entry, &mut list, DecodeContext::default())?;
        if entry.len() > MAX_ENTRY_BYTES || kept.len() >= most {
            continue;
        }
        kept.extend(Some(T::decode(entry.as_slice())?).filter(&is_kept));
    }
    Ok(kept)
}

impl Containers {
    pub(super) fn decode(list: &[u8]) -> Result<Self, DecodeError> {
        // One more than have names, so that it shows that some have none.
        entries(list, MAX_CONTAINERS + 1, |container: &OneContainer| container.state != EXITED).map(Self)
    }

    /// Whether images have to be asked for: kubelets name them by their hashes.
    pub(super) fn need_images(&self) -> bool {
        self.0.iter().any(|container| container.named_image().is_none())
    }
}

impl Pods {
    pub(super) fn decode(list: &[u8]) -> Result<Self, DecodeError> {
        entries(list, MAX_CONTAINERS, |_| true).map(Self)
    }
}

impl Images {
    pub(super) fn decode(list: &[u8]) -> Result<Self, DecodeError> {
        entries(list, MAX_IMAGES, |_| true).map(Self)
    }
}

impl OneContainer {
    /// The image by a name, not by its hash.
    fn named_image(&self) -> Option<&[u8]> {
        let image = self.image.as_ref()?;
        let named = |name: &&[u8]| !name.is_empty() && !name.starts_with(HASH);
        [image.user_specified.as_slice(), image.image.as_slice()].into_iter().find(named)
    }

    /// The image's hash, or another reference to it.
    fn image_references(&self) -> impl Iterator<Item = &[u8]> {
        let image = self.image.as_ref().map(|image| image.image.as_slice());
        image.into_iter().chain([self.image_ref.as_slice()]).filter(|reference| !reference.is_empty())
    }
}

impl Image {
    fn name(&self) -> Option<&[u8]> {
        self.tags.iter().chain(&self.digests).map(Vec::as_slice).find(|name| !name.is_empty())
    }
}

/// Names of images, by hash and by digest.
struct ImageNames<'i>(FxHashMap<&'i [u8], &'i [u8]>);

impl<'i> ImageNames<'i> {
    fn of(images: &'i Images) -> Self {
        let mut names = FxHashMap::default();
        for image in &images.0 {
            let Some(name) = image.name() else { continue };
            let references = image.digests.iter().chain([&image.id]).map(Vec::as_slice);
            names.extend(references.map(|reference| (reference, name)));
            names.extend(image.id.strip_prefix(HASH).map(|bare| (bare, name))); // as CRI-O writes it
        }
        Self(names)
    }

    fn of_container(&self, container: &OneContainer) -> Option<String> {
        let listed = || container.image_references().find_map(|reference| self.0.get(reference).copied());
        let name = container.named_image().or_else(listed);
        name.or_else(|| container.image_references().next()).and_then(text)
    }
}

/// All containers and pods of a runtime by their ids.
pub(super) fn names(containers: &Containers, pods: &Pods, images: &Images) -> ContainerNames {
    let images = ImageNames::of(images);
    let pods: FxHashMap<&[u8], Arc<Pod>> = pods.0.iter().filter_map(pod).collect();
    let mut names = ContainerNames::default();
    for container in &containers.0 {
        let name = container.metadata.as_ref().and_then(|metadata| text(&metadata.name));
        let pod = pods.get(container.sandbox.as_slice()).map(Arc::clone);
        let image = images.of_container(container);
        names.insert(&container.id, Container { name, image, pod });
    }
    // The process that holds a pod's namespaces is in a container of the sandbox's id.
    for (id, pod) in pods {
        names.insert(id, Container { name: None, image: None, pod: Some(pod) });
    }
    names
}

fn pod(sandbox: &Sandbox) -> Option<(&[u8], Arc<Pod>)> {
    let PodMetadata { name, uid, namespace } = sandbox.metadata.as_ref()?;
    let labels = sandbox.labels.iter().map(|pair| (pair.key.as_slice(), pair.value.as_slice()));
    let pod = Pod::new(namespace, name, uid, ContainerLabels::of(labels))?;
    Some((&sandbox.id, Arc::new(pod)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(number: u8) -> String {
        format!("{number:064x}")
    }

    fn sandbox(number: u8) -> Sandbox {
        let labels = [("app", "cart"), ("pod-template-hash", "7d9f8b6c5")];
        let pair = |(key, value): (&str, &str)| Pair { key: key.into(), value: value.into() };
        let metadata =
            PodMetadata { name: "cart-7d9f8b6c5-x2v4k".into(), uid: "u-1".into(), namespace: "shop".into() };
        Sandbox { id: id(number).into(), metadata: Some(metadata), labels: labels.map(pair).to_vec() }
    }

    fn container(number: u8, sandbox: u8, image: &str) -> OneContainer {
        OneContainer {
            id: id(number).into(),
            sandbox: id(sandbox).into(),
            metadata: Some(ContainerMetadata { name: "server".into() }),
            image: Some(ImageSpec { image: image.into(), user_specified: Vec::new() }),
            image_ref: "sha256:ab".into(),
            state: 1,
        }
    }

    /// A list as it is sent, with a field that nobody knows.
    fn list(entries: &[impl Message]) -> Vec<u8> {
        let mut sent = vec![0x12, 1, 0];
        for entry in entries {
            prost::encoding::message::encode(1, entry, &mut sent);
        }
        sent
    }

    #[test]
    fn a_container_has_its_own_name_and_those_of_its_pod() {
        let containers = Containers(vec![container(2, 1, "reg/cart:1.2")]);
        assert!(!containers.need_images());
        let names = names(&containers, &Pods(vec![sandbox(1)]), &Images::default());
        let found = names.get(&id(2)).unwrap();
        assert_eq!((found.name.as_deref(), found.image.as_deref()), (Some("server"), Some("reg/cart:1.2")));
        let pod = found.pod.as_ref().unwrap();
        assert_eq!([&*pod.namespace, &pod.name, &pod.uid], ["shop", "cart-7d9f8b6c5-x2v4k", "u-1"]);
        assert_eq!((pod.labels["app"].as_str(), pod.workload.name.as_str()), ("cart", "cart"));
        let holder = names.get(&id(1)).unwrap();
        assert_eq!((holder.name.as_ref(), holder.pod.as_ref()), (None, Some(pod)));
    }

    #[test]
    fn an_image_that_is_named_by_its_hash_has_the_name_of_the_list() {
        let of = |image: &str, image_ref: &str, images: &Images| {
            let container = OneContainer { image_ref: image_ref.into(), ..container(2, 1, image) };
            let containers = Containers(vec![container]);
            assert_eq!(containers.need_images(), image.is_empty() || image.starts_with("sha256:"));
            names(&containers, &Pods::default(), images).get(&id(2)).unwrap().image.clone().unwrap()
        };
        let listed = Image {
            id: "sha256:ab".into(),
            tags: vec!["reg/cart:1.2".into()],
            digests: vec!["reg/cart@sha256:cd".into()],
        };
        let images = Images(vec![Image::default(), listed]);
        assert_eq!(of("sha256:ab", "", &images), "reg/cart:1.2");
        assert_eq!(of("sha256:ab", "", &Images::default()), "sha256:ab", "better than nothing");
        assert_eq!(of("", "reg/cart@sha256:cd", &images), "reg/cart:1.2");
        assert_eq!(of("reg/other", "sha256:ab", &images), "reg/other");
    }

    #[test]
    fn containers_that_have_ended_and_those_of_unknown_pods_are_what_is_known_of_them() {
        let ended = OneContainer { state: EXITED, ..container(2, 1, "a") };
        let orphan = container(3, 9, "b");
        let containers = Containers::decode(&list(&[ended, orphan])).unwrap();
        let names = names(&containers, &Pods::default(), &Images::default());
        assert_eq!(names.get(&id(2)), None);
        assert_eq!(names.get(&id(3)).unwrap().pod, None);
    }

    #[test]
    fn a_text_that_is_not_utf_8_spoils_no_other() {
        let broken = OneContainer {
            metadata: Some(ContainerMetadata { name: b"\xff\x00".to_vec() }),
            ..container(3, 1, "a")
        };
        let read = Containers::decode(&list(&[broken, container(2, 1, "a")])).unwrap();
        let names = names(&read, &Pods::default(), &Images::default());
        assert_eq!(names.get(&id(2)).unwrap().name.as_deref(), Some("server"));
        assert_eq!(names.get(&id(3)).unwrap().name.as_deref(), Some("\u{fffd}\u{fffd}"));
    }

    #[test]
    fn a_list_that_is_long_or_torn_takes_no_more_than_it_may() {
        let empty = [0x0a, 0].repeat(1 << 20);
        assert_eq!(Pods::decode(&empty).unwrap().0.len(), MAX_CONTAINERS);
        let mut huge = container(2, 1, "a");
        huge.image_ref = vec![b'x'; MAX_ENTRY_BYTES];
        assert_eq!(Containers::decode(&list(&[huge, container(3, 1, "a")])).unwrap().0.len(), 1);
        let whole = list(&[container(2, 1, "a")]);
        for end in 4..whole.len() {
            assert!(Containers::decode(&whole[..end]).is_err(), "{end}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_runtime_sends_is_read_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            cut in 0_usize..400,
            flipped in 0_usize..400,
        ) {
            let mut sound = list(&[container(2, 1, "a")]);
            sound.truncate(cut);
            if let Some(byte) = sound.get_mut(flipped) {
                *byte ^= 0x55;
            }
            for sent in [bytes.as_slice(), &sound] {
                let read = |sent| Some((
                    Containers::decode(sent).ok()?,
                    Pods::decode(sent).unwrap_or_default(),
                    Images::decode(sent).unwrap_or_default(),
                ));
                if let Some((containers, pods, images)) = read(sent) {
                    let _ = names(&containers, &pods, &images);
                }
            }
        }
    }
}
