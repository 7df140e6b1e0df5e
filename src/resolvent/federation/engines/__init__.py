"""The engines that carry the messages: this process, NVIDIA FLARE, Flower."""
